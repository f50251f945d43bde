"""No code decides by a sentence: what programs compare is a code or a value, and sentences are for people.

Sentences change with every release that words them better; a comparison with one fails then in silence.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("service", "tuner", "workers", "api_schemas", "db")
SENTENCES = frozenset(
    ("reason", "message", "note", "sentence", "cause", "text", "detail", "description", "explanation", "outcome")
)
"""Names of values that hold sentences."""
SEARCHES = frozenset(("startswith", "endswith", "partition", "rpartition", "find", "removeprefix", "removesuffix"))
PATTERNS = frozenset(("match", "search", "fullmatch", "findall", "finditer"))
"""Methods of a pattern that search a text; a pattern that replaces characters decides nothing."""
FOLDS = frozenset(("lower", "casefold", "strip"))
LINES = frozenset(("line", "lossy"))
"""Names of sentences in the modules that write notes beside an export; elsewhere a line is one of a file."""
WRITERS_OF_LINES = ("tuner/export/", "service/wording/")

ALLOWED = {
    "service/http/validation_errors.py": "an error that begins with its field's name does not get the name again",
    "service/http/errors.py": "messages of the tuner's rules begin with field and value; read here alone",
    "service/pages/app.py": "a full stop is added where there is none",
    "service/pages/views/schedules.py": "a percent sign that a person typed",
    "service/pages/views/words.py": "the details stand apart from the sentence that ends with them",
    "workers/commands/dispatch.py": "an error that begins with its field's name does not get the name again",
    "workers/rank/classify.py": "errors of torch and NCCL have no code",
    "workers/rank/gpu_errors.py": "errors of torch and NCCL have no code",
    "workers/rank/own_code/failures.py": "torch's error has no code",
    "workers/rank/private_names.py": "Python's error about a missing name has no code",
    "workers/rank/strategies/zero.py": "DeepSpeed's error has no code",
    "tuner/export/snippet.py": "lines of Python, not sentences",
    "db/limits.py": "SQLite's error has no code",
    "api_schemas/formatting.py": "an error that begins with its field's name does not get the name again",
    "api_schemas/known_fields.py": "pydantic's prefix of a message",
    "api_schemas/trials/rehearsals.py": "a message of the tuner's rules begins with field and value",
    "db/migrations/versions/0008_reason_codes.py": "codes for sentences that were stored before there were codes",
}


def test_no_code_searches_in_sentences_or_compares_them() -> None:
    places = sorted({path for path, _ in _comparisons()})
    assert [path for path in places if path not in ALLOWED] == []


def test_each_allowed_place_still_exists() -> None:
    assert sorted(ALLOWED) == sorted({path for path, _ in _comparisons()})


@cache
def _comparisons() -> tuple[tuple[str, int], ...]:
    return tuple(_find_comparisons())


def _find_comparisons() -> Iterator[tuple[str, int]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(path.read_text())):
                if _decides_by_sentence(node, place.startswith(WRITERS_OF_LINES)):
                    yield place, node.lineno  # type: ignore[attr-defined]


def _decides_by_sentence(node: ast.AST, writes_lines: bool = False) -> bool:
    return _searches_in_sentence(node, writes_lines) or _compares_with_sentence(node)


def _searches_in_sentence(node: ast.AST, writes_lines: bool) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if name in LINES and writes_lines:
            return method in SEARCHES
        case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in SEARCHES:
            return _holds_sentence(value)
        case ast.Call(func=ast.Attribute(attr=method), args=arguments) if method in PATTERNS:
            return any(_is_message(argument) for argument in arguments)
        case _:
            return False


def _compares_with_sentence(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare):
        return False
    if isinstance(node.ops[-1], ast.In | ast.NotIn) and _is_message(node.comparators[-1]):
        return True
    sides = [node.left, *node.comparators]
    literal = any(
        isinstance(side, ast.Constant) and isinstance(side.value, str) and " " in side.value for side in sides
    )
    return (literal or any(map(_makes_sentence, sides))) and any(_holds_sentence(side) for side in sides)


def _makes_sentence(node: ast.expr) -> bool:
    """Whether a value comes from a function that is named for the sentence that it makes, such as `end_message`."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name.rpartition("_")[2] in SENTENCES
        case _:
            return False


def _holds_sentence(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in SENTENCES
        case ast.BoolOp(values=values):
            return any(_holds_sentence(value) for value in values)
        case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in FOLDS:
            return _holds_sentence(value)
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id="error") | ast.Attribute(value=ast.Name(id="error"))]):
            return True
        case _:
            return False


def _is_message(node: ast.expr) -> bool:
    """Whether a value is a sentence, and no text that somebody else wrote: a pattern may well search a `text`."""
    return _holds_sentence(node) and "text" not in ast.unparse(node)


@pytest.mark.parametrize(
    "code",
    [
        "str(error).startswith('baseline.')",
        "reason.text.lower().startswith('waits')",
        "FIELD.match(message)",
        "'no other backend' in note",
        "detail.lower() not in reason",
        "reason == 'nothing fits'",
        "failure.message == expiry.end_message(cause)",
    ],
)
def test_a_planted_decision_by_a_sentence_is_found(code: str) -> None:
    assert any(_decides_by_sentence(node) for node in ast.walk(ast.parse(code)))


def test_notes_of_exports_are_not_chosen_by_their_first_words() -> None:
    (statement,) = ast.parse("line.startswith('loss:')").body
    assert isinstance(statement, ast.Expr)
    assert _decides_by_sentence(statement.value, writes_lines=True) and not _decides_by_sentence(statement.value)
