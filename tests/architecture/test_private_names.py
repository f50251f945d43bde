"""Private names of libraries stand in one list (workers/rank/private_names.py), with the versions that they were read in."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from shardtune.workers.rank.private_names import NAMES, READ_IN, TESTED

ROOT = Path(__file__).parents[2]
LIBRARIES = ("accelerate", "bitsandbytes", "deepspeed", "peft", "torch", "torchao", "transformers")
LISTED = [name for names in NAMES.values() for name in names]
SOURCES = {
    path: path.read_text() for path in sorted((ROOT / "workers").rglob("*.py")) if path.name != "private_names.py"
}


def _is_private(name: str) -> bool:
    parts = name.split(".")
    # Hooks for everybody, such as `__version__`, are no private names.
    return parts[0] in LIBRARIES and any(part.startswith("_") and not part.endswith("__") for part in parts)


def _imported(tree: ast.Module) -> dict[str, str]:
    """Full names of what a module imports, by the names that it has there."""
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            imported |= {
                alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names if alias.asname
            }
            imported |= {name: name for alias in node.names if (name := alias.name.partition(".")[0]) in LIBRARIES}
    return imported


def _used(text: str) -> Iterator[str]:
    """Full names of what a module imports from libraries, and of their attributes."""
    tree = ast.parse(text)
    imported = _imported(tree)
    yield from imported.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, dot, rest = ast.unparse(node).partition(".")
            if first in imported and re.fullmatch(r"[\w.]+", rest):
                yield f"{imported[first]}{dot}{rest}"


def _is_listed(name: str) -> bool:
    return any(f"{listed}.".startswith(f"{name}.") or f"{name}.".startswith(f"{listed}.") for listed in LISTED)


def test_each_private_name_that_ranks_use_is_listed() -> None:
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in SOURCES.items()
        for name in _used(text)
        if _is_private(name) and not _is_listed(name)
    }
    assert sorted(missing) == []


def test_each_listed_name_is_used() -> None:
    text = "\n".join(SOURCES.values())
    assert [name for name in LISTED if not re.search(rf"\b{name.rpartition('.')[2]}\b", text)] == []


def test_the_versions_that_the_tests_run_with_are_those_of_the_constraints() -> None:
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert {library: pinned[library] for library in TESTED} == TESTED
    assert all(TESTED[library] in versions for library, versions in READ_IN.items())
