"""Draw paragraphs of the documentation and docstrings at random, for a reader who sees nothing around them.

    python -m tests.architecture.draw_passages --seed 7 --count 20 [--repo DIR] [--key FILE]

Half are paragraphs or list items of the documentation, half docstrings of classes, functions and attributes. The key
names file and line of each number; keep it from the reader.
"""

import argparse
import inspect
import random
import re
from pathlib import Path
from typing import NamedTuple

from tests.architecture.language.checkout import Checkout
from tests.architecture.language.prose import read_page

ROOT = Path(__file__).parents[2]
LEAST_WORDS = 6


class Passage(NamedTuple):
    """A text, and the place it comes from."""

    kind: str
    text: str
    file: str
    line: int


def paragraphs(checkout: Checkout) -> list[Passage]:
    """Paragraphs and list items of the documentation."""
    return [
        Passage("documentation", re.sub(r"\n\s+", "\n", paragraph.text), file, paragraph.line)
        for file in checkout.documents()["docs"]
        for paragraph in read_page(checkout.text(file)).paragraphs
        if len(paragraph.text.split()) >= LEAST_WORDS
    ]


def documented_code(checkout: Checkout) -> list[Passage]:
    """Docstrings of classes, functions and attributes of product code."""
    return [
        Passage(
            f"docstring of {'an' if docstring.kind == 'attribute' else 'a'} {docstring.kind}",
            text,
            file,
            docstring.line,
        )
        for file in checkout.code()
        for docstring in checkout.source(file).docstrings
        if docstring.kind in ("class", "function", "attribute")
        if len((text := inspect.cleandoc(docstring.text)).split()) >= LEAST_WORDS
    ]


def draw(checkout: Checkout, seed: int, count: int) -> list[Passage]:
    """Draw passages, the same ones for the same seed and checkout, in a random order."""
    chance = random.Random(seed)
    drawn = chance.sample(paragraphs(checkout), count - count // 2)
    drawn += chance.sample(documented_code(checkout), count // 2)
    chance.shuffle(drawn)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.architecture.draw_passages")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--repo", type=Path, default=ROOT, help="checkout to draw from; default: this one")
    parser.add_argument("--key", type=Path, help="file that gets the place of each passage")
    options = parser.parse_args()
    passages = draw(Checkout(options.repo), options.seed, options.count)
    for number, passage in enumerate(passages, 1):
        print(f"{number}. ({passage.kind})\n{passage.text}\n")
    if options.key:
        key = (f"{number} {passage.file}:{passage.line}\n" for number, passage in enumerate(passages, 1))
        options.key.write_text("".join(key))


if __name__ == "__main__":
    main()
