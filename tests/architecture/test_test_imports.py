"""Who imports whom among tests and benchmarks: what several need lies in tests/support, made-up hosts in tests/lab."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py")])
SHARED = ("tests.support", "tests.lab")


def imported(path: Path) -> set[str]:
    """Modules of tests/ and benchmarks/ that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.split(".")[0] in ("tests", "benchmarks")}


def allowed(importer: str, name: str) -> bool:
    if name == "tests" or any(name == shared or name.startswith(f"{shared}.") for shared in SHARED):
        return True
    if name.startswith("tests.architecture"):
        # The measure of the language is a program beside the tests that hold its limits.
        return importer.startswith("tests/architecture/")
    if name.split(".")[0] == "benchmarks":
        return importer.startswith(("benchmarks/", "tests/benchmarks/"))
    return False


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_what_is_there_for_all_is_shared(path: Path) -> None:
    importer = str(path.relative_to(ROOT))
    assert {name for name in imported(path) if not allowed(importer, name)} == set()
