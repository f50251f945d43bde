"""Reads Markdown: the pages of the repository, their links, their anchors and their code blocks."""

import re
import subprocess
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from docs.generate.sources import ROOT

_FENCE = re.compile(r"^\s*(?P<ticks>`{3,}|~{3,})(?P<info>.*)$")
_CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_ATTRIBUTE = re.compile(r"\b(?:href|src|srcset)=\"([^\"\s]+)\"")
_EXPLICIT = re.compile(r"\{[^{}]*#([\w-]+)[^{}]*\}|\bid=\"([\w-]+)\"")

Line = tuple[int, str]
"""Number in the committed file, and text."""


class Block(NamedTuple):
    """A fenced code block."""

    line: int
    """Number of its first fence."""
    info: str
    """What follows the first fence, such as `json title="study.json"`."""
    text: str


def markdown_files() -> list[str]:
    """Every Markdown file of the repository that git does not ignore, relative to its root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(name for name in set(listed) if (ROOT / name).is_file())


def read(path: str) -> str:
    """Text of a file of the repository."""
    return (ROOT / path).read_text()


def numbered(text: str) -> list[Line]:
    """Lines with their numbers."""
    return list(enumerate(text.splitlines(), 1))


def prose(lines: Iterable[Line]) -> Iterator[Line]:
    """Lines outside code blocks."""
    fence = ""
    for number, line in lines:
        match = _FENCE.match(line)
        if fence:
            if match and match["ticks"].startswith(fence) and not match["info"].strip():
                fence = ""
        elif match:
            fence = match["ticks"]
        else:
            yield number, line


def blocks(lines: Iterable[Line]) -> Iterator[Block]:
    """Fenced code blocks, without the indentation of their fences."""
    fence, info, start, indent = "", "", 0, 0
    body: list[str] = []
    for number, line in lines:
        match = _FENCE.match(line)
        if not fence and match:
            fence, info, start = match["ticks"], match["info"].strip(), number
            indent, body = len(line) - len(line.lstrip()), []
        elif fence and match and match["ticks"].startswith(fence) and not match["info"].strip():
            yield Block(start, info, "\n".join(body) + "\n")
            fence = ""
        elif fence:
            body.append(line[indent:] if not line[:indent].strip() else line)


def links(lines: Iterable[Line]) -> Iterator[Line]:
    """Targets of links and pictures, with their line numbers."""
    for number, line in prose(lines):
        text = _CODE.sub("", line)
        for pattern in (_LINK, _ATTRIBUTE):
            yield from ((number, match[1]) for match in pattern.finditer(text))


def code_spans(lines: Iterable[Line]) -> Iterator[Line]:
    """Contents of backticks in the prose, with their line numbers."""
    for number, line in prose(lines):
        yield from ((number, match[2].strip()) for match in _CODE.finditer(line))


def anchors(lines: Iterable[Line]) -> set[str]:
    """Addresses within a page: of its headings, as git hosts and the site make them, and those that it states."""
    counts: dict[str, int] = {}
    addresses: set[str] = set()
    for _, line in prose(lines):
        explicit = [match[1] or match[2] for match in _EXPLICIT.finditer(_without_code(line))]
        addresses.update(explicit)
        if (match := re.match(r"^#{1,6}\s+(.+?)\s*#*$", line)) and not explicit:
            base = heading_slug(match[1])
            addresses.add(f"{base}_{counts[base]}" if base in counts else base)
            counts[base] = counts.get(base, 0) + 1
    return addresses


def heading_slug(text: str) -> str:
    """Address of a heading: lower case, punctuation dropped, spaces as hyphens."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]+>", "", text)
    return re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", "-")


def _without_code(line: str) -> str:
    """The line with its code spans emptied: braces in code state no anchor."""
    return _CODE.sub("``", line)
