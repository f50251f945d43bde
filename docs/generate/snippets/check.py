"""The rule for each language of a code block."""

from pathlib import Path

from docs.generate.snippets import commands, data, programs
from docs.generate.snippets.collect import Snippet

SHELL = ("sh", "bash", "shell")
UNCHECKED = ("text", "diff", "http", "html", "css", "ini", "sql", "promql", "nginx", "jinja")
"""Output, synopses, and languages that nothing here reads."""


def problem(snippet: Snippet, folder: Path) -> str:
    """Describe the fault of a code block, with its place; empty without a fault. Python runs in `folder`."""
    if snippet.marker == "skip":
        return ""
    text = _problem(snippet, folder)
    return f"{snippet.place}: {text}" if text else ""


def _problem(snippet: Snippet, folder: Path) -> str:
    match snippet.language:
        case "python" if snippet.marker == "compile":
            return programs.compile_problem(snippet.text) or programs.import_problem(snippet.text, folder)
        case "python":
            return programs.compile_problem(snippet.text) or programs.run_problem(snippet.text, folder)
        case "json":
            return data.json_problem(snippet.text)
        case "toml":
            return data.toml_problem(snippet.text)
        case "yaml":
            return data.yaml_problem(snippet.text)
        case "console":
            return _commands(snippet, with_prompts=True)
        case language if language in SHELL:
            return _commands(snippet, with_prompts=False)
        case language if language in UNCHECKED:
            return ""
        case "":
            return "the block names no language; say console, sh, json, python, toml, yaml or text behind the fence"
        case language:
            return f"language ({language}) has no rule; add one to docs/generate/snippets/check.py, or say text"


def _commands(snippet: Snippet, *, with_prompts: bool) -> str:
    try:
        return "; ".join(commands.problems(snippet.text, with_prompts=with_prompts))
    except ValueError as error:
        return str(error)
