"""Rooms one can find: sizes of folders, docstrings, names of classes. Part of `make check`."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("api_schemas", "db", "traces", "tuner", "workers", "service", "shardtune")
MOST_FILES = 20
ONE_NOUN_A_FILE = "api_schemas"


def _modules() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not (package == "shardtune" and path.resolve() != path) and "migrations/versions" not in str(path):
                yield path


def test_a_folder_holds_no_more_files_than_one_can_look_over() -> None:
    sizes = Counter(str(path.parent.relative_to(ROOT)) for path in _modules())
    assert {name: n for name, n in sizes.items() if n > MOST_FILES and name != ONE_NOUN_A_FILE} == {}


def test_every_folder_says_what_it_owns() -> None:
    folders = {path.parent for path in _modules()}
    silent = [
        str(folder.relative_to(ROOT))
        for folder in sorted(folders)
        if not (folder / "__init__.py").exists()
        or not ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    ]
    assert silent == []


def _is_stub(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and statement.value.value is ...
    )


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _owes_a_word(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    speaks = node.name.startswith("_") or len(node.body) == 1 or any(map(_is_stub, node.body))
    return not speaks and ast.get_docstring(node) is None


def test_what_takes_more_than_one_statement_says_what_it_is_for() -> None:
    """ruff asks for docstrings of modules and classes; one-line functions and protocol methods may speak for themselves."""
    silent = []
    for path in _modules():
        tree = ast.parse(path.read_text())
        public = (node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
        functions = (node for scope in (tree, *public) for node in scope.body if isinstance(node, _FUNCTIONS))
        silent += [f"{path.relative_to(ROOT)}:{node.lineno} {node.name}" for node in functions if _owes_a_word(node)]
    assert silent == []


def test_a_class_name_means_one_thing() -> None:
    places = defaultdict(list)
    for path in _modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: actual for name, actual in places.items() if len(actual) > 1} == {}
