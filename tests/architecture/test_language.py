"""Limits of the language: names, docstrings, module names, sentences, comments. `python -m tests.architecture.language` measures."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.language.checkout import Checkout
from tests.architecture.language.measure import (
    LONGEST_SENTENCE,
    Place,
    comment_counts,
    headless_docstrings,
    long_sentences,
    measure_code,
    measure_documents,
    participle_modules,
    summed,
    vague_names,
)
from tests.architecture.language.prose import read_page

MOST_VAGUE = 0.005
MOST_WORDS_P90 = 25
LEAST_COMMENTS = 3
CHECKOUT = Checkout(Path(__file__).parents[2])


@cache
def _figures() -> dict[str, Any]:
    """Figures of the product and its documentation; those of tests and benchmarks have no limit."""
    documents = measure_documents([read_page(CHECKOUT.text(file)) for file in CHECKOUT.documents()["docs"]])
    return {**measure_code(CHECKOUT, CHECKOUT.code()), "docs": documents}


@cache
def _headless() -> list[Place]:
    return list(headless_docstrings(CHECKOUT, CHECKOUT.code()))


def _report(todo: str, places: list[Place] | list[str]) -> str:
    return "\n".join([f"{todo} ({len(places)} in all):", *map(str, places)])


@pytest.mark.parametrize("share", ["vague_bindings", "vague_bindings_plain"])
def test_names_say_what_the_value_is(share: str) -> None:
    """Limit of vague names: one in 200 may be one of `vocabulary.VAGUE`, such as `found` or `one`."""
    places = list(vague_names(CHECKOUT, CHECKOUT.code())) if _figures()[share] > MOST_VAGUE else []
    assert not places, _report("name the value, such as `candidate_rows` for `found`", places)


def test_docstrings_begin_with_a_head() -> None:
    places = [place for place in _headless() if place.kind != "help"]
    assert not places, _report("begin with a verb, or a noun phrase with its head: `Maximum number of rows.`", places)


def test_help_texts_begin_with_a_head() -> None:
    places = [place for place in _headless() if place.kind == "help"]
    assert not places, _report("begin with a verb, or a noun phrase with its head: `Maximum number of rows.`", places)


def test_modules_are_named_by_nouns() -> None:
    modules = participle_modules(CHECKOUT.code())
    assert not modules, _report("name the file for what it holds: `explain_request.py` for `asked.py`", modules)


def test_sentences_of_the_documentation_are_short() -> None:
    """Nine in ten have 25 words at most, and none has more than 35, in tables neither."""
    places = list(long_sentences(CHECKOUT, CHECKOUT.documents()["docs"]))
    assert not places, _report(f"split the sentence: over {LONGEST_SENTENCE} words", places)
    if _figures()["docs"]["sentence_words_p90"] > MOST_WORDS_P90:
        places = list(long_sentences(CHECKOUT, CHECKOUT.documents()["docs"], MOST_WORDS_P90))
        pytest.fail(_report(f"split sentences until one in ten has more than {MOST_WORDS_P90} words", places))


@pytest.mark.parametrize("package", ["service", "workers", "tuner"])
def test_comments_say_why(package: str) -> None:
    """Hazards, upstream quirks with their version and measured facts have a comment: 3 per 100 lines of code."""
    counts = comment_counts(CHECKOUT, CHECKOUT.package(package))
    bare = [
        f"{file}: {count.comments} in {count.code} lines"
        for file, count in counts.items()
        if count.per_100 < LEAST_COMMENTS
    ]
    share = summed(counts).per_100
    todo = f"say why, where a hazard, a quirk or a measured fact is: {share:.1f} comments per 100 lines of {package}"
    assert share >= LEAST_COMMENTS, _report(todo, bare)
