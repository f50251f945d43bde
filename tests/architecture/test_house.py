"""Rooms one can find and one word per idea: sizes of folders, names of classes, words that were given up. Part of `make check`."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("api_schemas", "db", "traces", "tuner", "workers", "service", "shardtune")
MOST_FILES = 20
ONE_NOUN_A_FILE = "api_schemas"
HISTORY = (
    "db/migrations/versions/",
    "CHANGELOG.md",
    "docs/glossary.md",
    "docs/measurements/",
    "tests/architecture/test_house.py",
)
"""Where old words stand for what they were: released revisions, records, and the list itself."""
RETIRED = {
    r"errands?|Errands?": "system study",
    r"askers?|Askers?": "PlannerCache, ask_lock",
    r"crown(ing|ed|s)?": "winner",
    r"[Ee]ras?|\w*_eras?": "fingerprint period",
    r"study_keys?": "case_key (study_id names a study)",
    r"shape_key": "case_key_without_fingerprint",
    r"match_round": "promotion_round",
    r"BestRow": "ServedCaseRow",
    r"Seats|seats": "StreamLimits",
    r"(work_)?board|Board": "WorkSignal",
    r"event_feed|Feed": "EventSignal",
    r"DeadEnd": "NoLegalValue",
    r"tether(ed)?": "a process that dies with its parent (parent_death)",
    r"see_through": "run_to_end",
    r"second_life": "resume phase",
    r"StudyView": "StudySnapshot",
}


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
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def _texts() -> Iterator[tuple[str, str]]:
    for pattern in ("docs/**/*.md", "README.md", "service/pages/**/*.html", "tests/**/*.py", "benchmarks/**/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            yield str(path.relative_to(ROOT)), path.read_text()
    for path in _modules():
        yield str(path.relative_to(ROOT)), path.read_text()


def test_words_that_were_given_up_are_not_used() -> None:
    found = [
        f"{name}: {match[0]} (say: {instead})"
        for name, text in _texts()
        if not name.startswith(HISTORY) and name != "tests/unit/db/test_populated.py"
        for word, instead in RETIRED.items()
        if (match := re.search(rf"\b(?:{word})\b", text))
    ]
    assert found == []


def test_a_retired_word_would_be_found() -> None:
    for word, example in {r"errands?|Errands?": "the errand", r"[Ee]ras?|\w*_eras?": "def _eras"}.items():
        assert word in RETIRED and re.search(rf"\b(?:{word})\b", example)
