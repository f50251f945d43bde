"""Checks command lines: programs of ours take the options, scripts and modules are there, and routes are routes of the API."""

import argparse
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from typing import Any

from typer.core import TyperGroup

from docs.generate import cli_reference, sources
from docs.generate.rest_reference import routes

_OPERATORS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "2>", "2>&1"}
_OURS = ("shardtune", ".venv/bin/shardtune")
_STARTERS = ("salloc", "srun", "nice", "nohup", "sudo", "time", "env")
"""Programs that start another one behind their own options."""
_WORKER_MODULE = ("-m", "shardtune.workers")
_ADDRESS = re.compile(r"/(?:v1/[^\s\"'?]*|healthz|readyz|metrics)")


def problems(text: str, *, with_prompts: bool) -> Iterator[str]:
    """A line for each command that would not be accepted; `with_prompts`: only lines that begin with `$` are commands."""
    for line in _logical_lines(text, with_prompts=with_prompts):
        for words in _commands(line):
            if problem := _problem(words):
                yield f"{shlex.join(words)}: {problem}"


def _logical_lines(text: str, *, with_prompts: bool) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        stripped = line.strip()
        if with_prompts and not stripped.startswith("$ "):
            continue
        stripped = stripped.removeprefix("$ ")
        if stripped and not stripped.startswith("#"):
            yield stripped


def _commands(line: str) -> Iterator[list[str]]:
    """Words of each command of a line, without variables that are set for it and without redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for word in [*_readable(lexer, line), ";"]:
        if word in _OPERATORS or set(word) <= set("|&;<>"):
            if words:
                yield words
            words = []
        elif words or not re.match(r"[A-Za-z_]\w*=", word):
            words.append(word)


def _readable(lexer: shlex.shlex, line: str) -> list[str]:
    try:
        return list(lexer)
    except ValueError as error:
        raise ValueError(
            f"{line}: {error}; a command that spans lines ends each but the last with a backslash"
        ) from error


def _problem(words: list[str]) -> str:
    # An ellipsis stands for further options.
    words = [word for word in words if word != "…"]
    if words and words[0] in _STARTERS:
        words = words[next((at for at, word in enumerate(words) if word in _OURS), 0) :]
    program, *arguments = words or [""]
    if program in _OURS:
        return _problem_of_shardtune(arguments)
    if program == "curl":
        return _problem_of_request(arguments)
    if re.fullmatch(r"(.*/)?python3?", program) and arguments:
        return _problem_of_python(arguments)
    return ""


def _problem_of_shardtune(arguments: list[str]) -> str:
    if not arguments or arguments[0] in {"--help", "--version"}:
        return ""
    name, *others = arguments
    known = sources.command_line()
    if name not in known:
        return f"command ({name}) must be one of {', '.join(known)}"
    if name == cli_reference.WORKER:
        return _problem_of_worker(others)
    command: Any = known[name]
    if isinstance(command, TyperGroup):
        if not others:
            return ""
        name, *others = others
        if name not in command.commands:
            return f"command ({name}) must be one of {', '.join(command.commands)}"
        command = command.commands[name]
    if "--help" in others:
        return ""
    try:
        command.make_context(name, others)
    except Exception as error:  # noqa: BLE001 typer raises its own kind of usage error, whose module is private
        return str(getattr(error, "message", "") or error or type(error).__name__)
    return ""


def _problem_of_worker(arguments: list[str]) -> str:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            sources.worker_parser().parse_args(arguments)
    except (SystemExit, argparse.ArgumentError) as end:
        return "" if getattr(end, "code", 2) == 0 else said.getvalue().strip().rpartition("\n")[2]
    return ""


def _problem_of_python(arguments: list[str]) -> str:
    if tuple(arguments[:2]) == _WORKER_MODULE:
        return _problem_of_worker(arguments[2:])
    if arguments[0].startswith("examples/") and not (sources.ROOT / arguments[0]).exists():
        return f"file ({arguments[0]}) is not there"
    return ""


def _problem_of_request(arguments: list[str]) -> str:
    """Whether some route has the method and the address, with shell variables and ids in the place of parameters."""
    match = next((match for word in arguments if (match := _ADDRESS.search(word))), None)
    if match is None:
        return ""
    given = [arguments[at + 1] for at, word in enumerate(arguments[:-1]) if word in {"-X", "--request"}]
    # -G sends the data as a query.
    is_query = any(re.fullmatch(r"-[a-zA-Z]*G|--get", word) for word in arguments)
    has_body = not is_query and any(re.match(r"(-d|--data|--json)", word) for word in arguments)
    method = given[0] if given else "POST" if has_body else "GET"
    for route in routes():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(route.path))
        if route.method == method and re.fullmatch(pattern, match[0]):
            return ""
    return f"route ({method} {match[0]}) is none of the API's; see docs/reference/rest.md"
