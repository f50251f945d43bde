"""One word per idea: words that were given up are in no code, page or document."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.architecture.retired_words import RETIRED, RetiredWord

ROOT = Path(__file__).parents[2]
TEXTS = (
    *("*.md", "docs/**/*.md", "deploy/**/*.md", "skills/**/*.md", ".github/**/*", "examples/**/*.py"),
    *(f"{folder}/**/*.py" for folder in ("tests", "benchmarks", "api_schemas", "db", "traces", "tuner", "workers")),
    *("service/**/*.py", "service/**/*.html", "shardtune/*.py"),
)
HISTORY = (
    "benchmarks/search/table.py",
    "benchmarks/busy/rows.py",
    "benchmarks/busy/sentences.py",
    "tests/benchmarks/test_busy.py",
    "tests/benchmarks/test_search.py",
    "db/migrations/versions/",
    "docs/reference/glossary.md",
    "docs/measurements/",
    "tests/architecture/retired_words.py",
    "tests/unit/db/test_data_migrations.py",
)
"""Files in which old words keep their meaning: revisions, records and their readers, and the list itself."""


class NamedText(NamedTuple):
    """A file's name and text, and both in lower case."""

    name: str
    text: str
    lowered: str


def _texts() -> Iterator[NamedText]:
    for pattern in TEXTS:
        for path in sorted(ROOT.glob(pattern)):
            name = str(path.relative_to(ROOT))
            if path.is_file() and not name.startswith(HISTORY):
                text = path.read_text()
                yield NamedText(name, text, f"{name}\n{text}".lower())


def _expression(word: RetiredWord) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{word.pattern})\b")


def _uses(word: RetiredWord, texts: list[NamedText]) -> Iterator[str]:
    expression = _expression(word)
    for name, text, lowered in texts:
        if word.stem in lowered and not (word.code_only and name.endswith(".md")):
            if any(expression.search(part.removesuffix(".py")) for part in Path(name).parts):
                yield f"{name} is named by it (say: {word.instead})"
            for match in expression.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{name}:{line} {match[0]} (say: {word.instead})"


def test_retired_words_are_not_used() -> None:
    texts = list(_texts())
    uses = [use for word in RETIRED for use in _uses(word, texts)]
    assert not uses, "\n".join(uses)


@pytest.mark.parametrize("word", RETIRED, ids=lambda word: word.example)
def test_a_retired_word_is_told_from_its_legal_uses(word: RetiredWord) -> None:
    expression = _expression(word)
    assert expression.search(word.example) and word.stem in word.example.lower()
    assert [text for text in word.legal if expression.search(text)] == []
