"""Figures of a checkout, and the places behind them."""

from collections.abc import Iterator
from math import ceil
from statistics import median
from typing import Any, NamedTuple

from tests.architecture.language.checkout import OTHER_CODE, PRODUCT, Checkout
from tests.architecture.language.code import PLAIN, Binding, CommentCount, Docstring, count_comments
from tests.architecture.language.prose import Page, read_page
from tests.architecture.language.vocabulary import is_bare_participle, is_headless, is_kin, is_vague

LONGEST_SENTENCE = 35


class Place(NamedTuple):
    """A line that a rule is about."""

    file: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.kind}: {self.text}"


def vague_names(checkout: Checkout, files: list[str], kin: bool = False) -> Iterator[Place]:
    """Bindings whose names say nothing, each with its source line."""
    matches = is_kin if kin else is_vague
    for file in files:
        lines = checkout.text(file).splitlines()
        for binding in checkout.source(file).bindings:
            if matches(binding.name):
                yield Place(file, binding.line, binding.kind, f"{binding.name} | {lines[binding.line - 1].strip()}")


def headless_docstrings(checkout: Checkout, files: list[str]) -> Iterator[Place]:
    """Docstrings and help texts that begin without a head."""
    for file in files:
        for docstring in checkout.source(file).docstrings:
            if is_headless(docstring.text):
                yield Place(file, docstring.line, docstring.kind, docstring.opening)


def participle_modules(files: list[str]) -> list[str]:
    """Modules and folders that are named by a bare participle or a vague word."""
    names = set(files) | {file.rpartition("/")[0] + "/" for file in files}
    return sorted(name for name in names if is_bare_participle(name.rstrip("/").rpartition("/")[2].removesuffix(".py")))


def long_sentences(checkout: Checkout, files: list[str], most: int = LONGEST_SENTENCE) -> Iterator[Place]:
    """Sentences of documents over so many words, in tables too."""
    for file in files:
        page = read_page(checkout.text(file))
        for sentence in sorted([*page.sentences, *page.cells]):
            if sentence.words > most:
                kind = f"{sentence.words} words" + (" in a table" if sentence in page.cells else "")
                yield Place(file, sentence.line, kind, sentence.text)


def comment_counts(checkout: Checkout, files: list[str]) -> dict[str, CommentCount]:
    return {file: count_comments(checkout.text(file), checkout.source(file).documented) for file in files}


def summed(counts: dict[str, CommentCount]) -> CommentCount:
    values = counts.values()
    return CommentCount(sum(count.comments for count in values), sum(count.code for count in values))


def percentile_90(values: list[int]) -> int:
    """Nearest-rank percentile; 0 of no values."""
    return sorted(values)[ceil(0.9 * len(values)) - 1] if values else 0


def measure_documents(pages: list[Page]) -> dict[str, Any]:
    """Figures of a group of documents."""
    words = sum(page.words for page in pages)
    lengths = [sentence.words for page in pages for sentence in page.sentences]
    return {
        "sentence_words_median": median(lengths) if lengths else 0,
        "sentence_words_p90": percentile_90(lengths),
        "sentences_over_35": sum(length > LONGEST_SENTENCE for length in lengths),
        "sentences": len(lengths),
        "table_sentences_over_35": sum(cell.words > LONGEST_SENTENCE for page in pages for cell in page.cells),
        "code_blocks": sum(page.code_blocks for page in pages),
        "pictures": sum(page.pictures for page in pages),
        "you_per_1000": round(1000 * sum(page.you for page in pages) / words, 1) if words else 0.0,
        "words": words,
        "lines": sum(page.lines for page in pages),
        "files": len(pages),
    }


def measure_code(checkout: Checkout, files: list[str]) -> dict[str, Any]:
    """Shares of vague names, and docstrings without a head."""
    names, strings = list[Binding](), list[Docstring]()
    for file in files:
        source = checkout.source(file)
        names += source.bindings
        strings += source.docstrings
    plain = [binding for binding in names if binding.kind in PLAIN]
    headless = [docstring.kind for docstring in strings if is_headless(docstring.text)]

    def share(chosen: list[Any], matches: Any = is_vague) -> float:
        return round(sum(matches(binding.name) for binding in chosen) / len(chosen), 4) if chosen else 0.0

    return {
        "vague_bindings": share(names),
        "vague_bindings_plain": share(plain),
        "kin_bindings": share(names, is_kin),
        "bindings": len(names),
        "docstrings_headless": sum(kind != "help" for kind in headless),
        "docstrings_headless_classes_functions": sum(kind in ("class", "function") for kind in headless),
        "help_headless": sum(kind == "help" for kind in headless),
        "docstrings": sum(docstring.kind != "help" for docstring in strings),
    }


def measure(checkout: Checkout) -> dict[str, Any]:
    """All figures: product code at the top, tests and benchmarks below their names."""
    documents = {
        group: measure_documents([read_page(checkout.text(file)) for file in files])
        for group, files in checkout.documents().items()
    }
    packages = {name: files for name in (*PRODUCT, *OTHER_CODE) if (files := checkout.package(name))}
    comments = {name: summed(comment_counts(checkout, files)) for name, files in packages.items()}
    return {
        **measure_code(checkout, checkout.code()),
        "docs": documents["docs"],
        "comments_per_100": {name: round(count.per_100, 1) for name, count in comments.items()},
        "participle_modules": participle_modules(checkout.code()),
        "code_lines": {name: count.code for name, count in comments.items()},
        **{name: measure_code(checkout, checkout.package(name)) for name in OTHER_CODE},
        "records": {group: documents[group] for group in ("measurements", "decisions", "changelog")},
    }
