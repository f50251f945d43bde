"""Files, modules, tests and make targets that pages and comments name in their text: each is there."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache

from docs.generate import pages
from docs.generate.sources import ROOT

RECORDS = ("docs/measurements/", "docs/decisions/", "CHANGELOG.md", "tests/data/")
"""Pages that say what was so at their date, or name files of other projects."""
_FOLDERS = "api_schemas|benchmarks|db|deploy|docs|examples|service|shardtune|tests|traces|tuner|workers"
_FILE = re.compile(rf"^(?:{_FOLDERS})/[\w./*-]*$")
_MODULE = re.compile(r"\bpython3? -m ((?:benchmarks|docs|tests|shardtune)(?:\.\w+)+)")
_TEST = re.compile(r"^(?:[a-z_]+/)*test_[a-z0-9_]+(?:\.py)?$")
_TARGET = re.compile(r"^make ([a-z][a-z-]*)")
_PLACEHOLDER = re.compile(r"[A-Z]{3,}")
"""Part of a path that stands for a name of the reader's choice, such as `tuner/KIND.py`."""
_PAGE_IN_CODE = re.compile(r"\bdocs/[\w/-]+\.md\b")


def problems(expanded: Mapping[str, list[pages.Line]]) -> Iterator[str]:
    """A line for each name in a page of something that is not there."""
    for path, lines in expanded.items():
        if path.startswith(RECORDS):
            continue
        for number, span in pages.code_spans(lines):
            if problem := _problem_of_span(span):
                yield f"{path}:{number}: {problem}"
        for block in pages.blocks(lines):
            for offset, line in enumerate(block.text.splitlines(), 1):
                if problem := _problem_of_command(line.strip().removeprefix("$ ")):
                    yield f"{path}:{block.line + offset}: {problem}"


def problems_in_code() -> Iterator[str]:
    """A line for each page of docs/ that code names and that is not there."""
    command = ["git", "grep", "--untracked", "-nIE", r"\bdocs/[A-Za-z0-9_/-]+\.md\b", "--", "*.py", "*.toml", "*.html"]
    listed = subprocess.run(
        [*command, "Makefile", "*.yaml", "*.sh"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    for entry in listed.stdout.splitlines():
        file, number, text = entry.split(":", 2)
        for name in _PAGE_IN_CODE.findall(text):
            if not (ROOT / name).exists() and not file.startswith(("tests/docs/", "tests/architecture/")):
                yield f"{file}:{number}: page ({name}) is not there; name the page that says it now"


def _problem_of_span(span: str) -> str:
    if _TEST.match(span):
        return "" if _test_exists(span) else f"test ({span}) is not there; name one that proves it"
    if _FILE.match(span) and not _file_exists(span):
        return f"file ({span}) is not there; correct the path"
    return _problem_of_command(span)


def _problem_of_command(text: str) -> str:
    if (match := _MODULE.search(text)) and not _module_exists(match[1]):
        return f"module ({match[1]}) is not there; correct the name"
    if (match := _TARGET.match(text)) and match[1] not in _targets():
        return f"make target ({match[1]}) is not in the Makefile; correct the name"
    return ""


@cache
def _file_exists(path: str) -> bool:
    if (ROOT / path).exists():
        return True
    pattern = _PLACEHOLDER.sub("*", path)
    # A path with a placeholder is right where at least one name fits.
    return "*" in pattern and any(True for _ in ROOT.glob(pattern.rstrip("/")))


@cache
def _module_exists(name: str) -> bool:
    path = name.replace(".", "/")
    return any((ROOT / file).exists() for file in (f"{path}.py", f"{path}/__main__.py", f"{path}/__init__.py"))


@cache
def _targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@cache
def _tests() -> tuple[frozenset[str], frozenset[str]]:
    """Paths of the test modules below tests/, and names of test functions."""
    files = list((ROOT / "tests").rglob("test_*.py"))
    functions = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    return frozenset(str(file.relative_to(ROOT / "tests")) for file in files), frozenset(functions)


def _test_exists(name: str) -> bool:
    modules, functions = _tests()
    path = name.removeprefix("tests/")
    named = any(module == path or module.endswith((f"/{path}", f"/{path}.py")) for module in modules)
    return named or name in functions
