"""Finds the code blocks of all pages with the markers in front of them."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from docs.generate import pages

_MARKER = re.compile(r"^\s*<!-- snippet: (?P<kind>\w+): (?P<reason>.+) -->\s*$")
_EXCLUDED = ("docs/measurements/", "CHANGELOG.md", "tests/", "benchmarks/")
"""Records of past runs, and pages of data."""
KINDS = ("skip", "compile")


class Snippet(NamedTuple):
    """A code block of a page."""

    path: str
    line: int
    language: str
    """First word behind the fence; empty where there is none."""
    text: str
    marker: str
    """`skip` or `compile`, where a comment in front of the block says so; else empty."""

    @property
    def place(self) -> str:
        """`FILE:LINE` of the block."""
        return f"{self.path}:{self.line}"


class MarkerError(ValueError):
    """A snippet marker that cannot be read."""


def snippets() -> Iterator[Snippet]:
    """Every code block of README.md, docs/ and the other Markdown files that readers follow.

    Raises:
        MarkerError: names file, line and remedy.
    """
    for path in pages.markdown_files():
        if not path.startswith(_EXCLUDED):
            yield from _of_page(path, pages.read(path))


def _of_page(path: str, text: str) -> Iterator[Snippet]:
    lines = text.splitlines()
    for block in pages.blocks(pages.numbered(text)):
        before = next((line for line in reversed(lines[: block.line - 1]) if line.strip()), "")
        marker = ""
        if "<!-- snippet" in before:
            match = _MARKER.match(before)
            if match is None or match["kind"] not in KINDS:
                raise MarkerError(
                    f"{path}:{block.line - 1}: marker ({before.strip()}) must read "
                    f"<!-- snippet: {' or '.join(KINDS)}: REASON -->"
                )
            marker = match["kind"]
        yield Snippet(path, block.line, block.info.partition(" ")[0], block.text, marker)
