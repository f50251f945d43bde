"""No code decides by a sentence: what programs compare is a code or a value, and sentences are for people.

Sentences change with every release that words them better; a comparison with one fails then in silence.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("service", "tuner", "workers", "api_schemas", "db")
SENTENCES = frozenset(
    ("reason", "message", "note", "sentence", "cause", "text", "detail", "description", "explanation", "outcome")
)
"""Names of values that hold sentences."""
SEARCHES = frozenset(("startswith", "endswith", "partition", "rpartition", "find", "removeprefix", "removesuffix"))

ALLOWED = {
    "service/http/validation_errors.py": "an error that begins with its field's name does not get the name again",
    "service/pages/app.py": "a full stop is added where there is none",
    "service/wording/study_words.py": "a reason that begins with the configuration does not get it again",
    "service/pages/views/schedules.py": "a percent sign that a person typed",
    "service/pages/views/words.py": "the details stand apart from the sentence that ends with them",
    "workers/commands/dispatch.py": "an error that begins with its field's name does not get the name again",
    "workers/rank/own_code/failures.py": "torch's error has no code",
    "api_schemas/formatting.py": "an error that begins with its field's name does not get the name again",
    "api_schemas/known_fields.py": "pydantic's prefix of a message",
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
            for node in ast.walk(ast.parse(path.read_text())):
                if _searches_in_sentence(node) or _compares_with_sentence(node):
                    yield path.relative_to(ROOT).as_posix(), node.lineno  # type: ignore[attr-defined]


def _searches_in_sentence(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in SEARCHES:
            return _holds_sentence(value)
        case _:
            return False


def _compares_with_sentence(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    literal = any(
        isinstance(side, ast.Constant) and isinstance(side.value, str) and " " in side.value for side in sides
    )
    return literal and any(_holds_sentence(side) for side in sides)


def _holds_sentence(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in SENTENCES
        case ast.BoolOp(values=values):
            return any(_holds_sentence(value) for value in values)
        case _:
            return False
