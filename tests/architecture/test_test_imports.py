"""Imports among tests and benchmarks: tests/support and tests/lab are for all; other helpers are for their own folder.

A helper in `tests/flow/helpers` or `tests/rank/helpers` is for the tests of the folder above it.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py")])
SHARED = ("tests.support", "tests.lab")


def imported(path: Path) -> set[str]:
    """Modules of tests/ and benchmarks/ that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in names if name.split(".")[0] in ("tests", "benchmarks")}


def is_beside(importer: str, name: str) -> bool:
    """Whether the module is no test, and lies below the importer's folder or in the helpers of a folder above it."""
    path = ROOT / name.replace(".", "/")
    # The last part may be a name that the module defines.
    module = next((file for file in (path.with_suffix(".py"), path.parent.with_suffix(".py")) if file.is_file()), path)
    folder = (ROOT / importer).parent
    is_helper = module.parent.name == "helpers" and module.parent.parent in (ROOT / importer).parents
    return not module.name.startswith("test_") and (folder in module.parents or is_helper)


def allowed(importer: str, name: str) -> bool:
    if name == "tests" or any(name == shared or name.startswith(f"{shared}.") for shared in SHARED):
        return True
    if name.startswith("tests.architecture"):
        # The measure of the language is a program beside the tests that hold its limits.
        return importer.startswith("tests/architecture/")
    if name.startswith("tests."):
        return is_beside(importer, name)
    if name.split(".")[0] == "benchmarks":
        return importer.startswith(("benchmarks/", "tests/benchmarks/"))
    return False


def test_only_what_is_there_for_all_is_shared() -> None:
    names = {str(path.relative_to(ROOT)): imported(path) for path in FILES}
    rejected = {
        importer: wrong
        for importer, modules in names.items()
        if (wrong := {name for name in modules if not allowed(importer, name)})
    }
    assert rejected == {}
