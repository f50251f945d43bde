"""Paragraphs and sentences of Markdown: without code blocks, tables, headings, pictures and the targets of links."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_FENCE = re.compile(r"\s*(?:>\s*)?(?:[-*+]\s+|\d+[.)]\s+)?(`{3,}|~{3,})")
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+(?:\[[ xX]\]\s+)?|:\s{1,4}(?=\S)")
_HEADING = re.compile(r"\s{0,3}#{1,6}\s")
_UNDERLINE = re.compile(r"\s{0,3}(?:=+|-{2,})\s*$")
_RULE = re.compile(r"\s*(?:[-*_]\s*){3,}$")
_DIRECTIVE = re.compile(r'\s*(?:!!!|\?\?\?\+?|===|///|:::|--8<--|\[[^\]]+\]:\s|"""|</?\w+[^>]*>\s*$)')
_PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?:)(?![^)]*#only-dark)[^)]+\)|<img\b(?![^>]*src=\"https?:)")
_IMAGE = re.compile(r"!\[[^\]]*\](?:\([^)]*\)|\[[^\]]*\])(?:\{[^}]*\})?")
_LINK = re.compile(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
_ATTRIBUTES = re.compile(r"\{[:#.][^}]*\}")
_TAG = re.compile(r"</?[a-zA-Z][^>]*>")
_CODE = re.compile(r"(`+)(.+?)\1(?!`)")
_END = re.compile(r"[.!?]+[\"'”’)\]*_]*(?=\s)")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|vs|cf|etc|approx|resp|incl|no|fig|eq|ca)|\b[A-Z])\.$", re.IGNORECASE)
_LONGEST_ABBREVIATION = 12
"""Characters that are searched for an abbreviation before the end of a sentence."""
_YOU = re.compile(r"\b(?:you|your|yours|yourself|yourselves)\b", re.IGNORECASE)
_MARKS = " .!?*_"
_PRIVATE = "".join(chr(0xE000 + number) for number in range(len(_MARKS)))
_HIDDEN = str.maketrans(_MARKS, _PRIVATE)
_SHOWN = str.maketrans(_PRIVATE, _MARKS)
LEAST_WORDS = 3
"""Shorter pieces are labels (`**Why.**`) and not counted as sentences."""


class Paragraph(NamedTuple):
    """A paragraph or list item: its first line and its text as written."""

    line: int
    text: str


class Sentence(NamedTuple):
    """A sentence; an inline code span counts as one word."""

    line: int
    text: str
    words: int


@dataclass
class Page:
    """A Markdown file taken apart."""

    paragraphs: list[Paragraph] = field(default_factory=list)
    sentences: list[Sentence] = field(default_factory=list)
    cells: list[Sentence] = field(default_factory=list)
    """Sentences in cells of tables: no part of the prose, and held to the same greatest length."""
    code_blocks: int = 0
    pictures: int = 0
    lines: int = 0

    @property
    def words(self) -> int:
        return sum(len(_plain(paragraph.text).split()) for paragraph in self.paragraphs)

    @property
    def you(self) -> int:
        return sum(len(_YOU.findall(_plain(paragraph.text))) for paragraph in self.paragraphs)


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def _plain(text: str) -> str:
    """Text as a reader sees it; the spaces and points of code spans are hidden, so that each is one word."""
    text = _CODE.sub(lambda match: match[2].strip().translate(_HIDDEN) or "code", text)
    text = _IMAGE.sub(" ", text)
    text = _LINK.sub(r"\1", text)
    return _TAG.sub(" ", _ATTRIBUTES.sub(" ", text)).replace("**", "").replace("__", "")


def _ends_abbreviation(text: str) -> bool:
    # A search from the paragraph's start for each of its sentences takes the square of its length.
    return _ABBREVIATION.search(text[-_LONGEST_ABBREVIATION:]) is not None


def _sentences(paragraph: Paragraph) -> Iterator[Sentence]:
    text, start = _plain(paragraph.text), 0
    ends = [match.end() for match in _END.finditer(text) if not _ends_abbreviation(text[: match.end()])]
    for end in [*ends, len(text)]:
        piece = text[start:end]
        line = paragraph.line + text[: start + len(piece) - len(piece.lstrip())].count("\n")
        words = [word for word in piece.split() if re.search(r"\w", word.translate(_SHOWN))]
        if len(words) >= LEAST_WORDS:
            yield Sentence(line, " ".join(piece.split()).translate(_SHOWN), len(words))
        start = end


class _Reader:
    """Lines of a file put together to paragraphs."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.open: list[str] = []
        self.line = 0
        self.fence = ""

    def end_paragraph(self) -> None:
        if any(re.search(r"\w", line) for line in self.open):
            self.page.paragraphs.append(Paragraph(self.line, "\n".join(self.open)))
        self.open = []

    def _inside_fence(self, line: str) -> bool:
        if self.fence:
            closing = line.strip().lstrip("> ")
            if closing.startswith(self.fence) and not closing.strip(self.fence[0]):
                self.fence = ""
            return True
        if match := _FENCE.match(line):
            self.end_paragraph()
            self.fence = match[1]
            self.page.code_blocks += 1
            return True
        return False

    def take(self, number: int, line: str) -> None:
        """Read one more line."""
        if self._inside_fence(line):
            return
        line = re.sub(r"^\s*(?:>\s?)+", "", line)
        if self.open and _UNDERLINE.match(line):
            # An underlined paragraph is a heading.
            self.open = []
        elif line.lstrip().startswith("|"):
            self.end_paragraph()
            for cell in re.split(r"(?<!\\)\|", line):
                self.page.cells += _sentences(Paragraph(number, cell))
        elif not line.strip() or _drops(line):
            self.end_paragraph()
        else:
            if item := _ITEM.match(line):
                self.end_paragraph()
                line = line[item.end() :]
            if not self.open:
                self.line = number
            self.open.append(line)


def _drops(line: str) -> bool:
    return any(pattern.match(line) for pattern in (_HEADING, _RULE, _DIRECTIVE))


def read_page(text: str) -> Page:
    """Take a Markdown text apart."""
    page = Page(lines=text.count("\n"))
    text = re.sub(r"\A---\n.*?\n---\n", _blank, text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", _blank, text, flags=re.DOTALL)
    reader, outside = _Reader(page), []
    for number, line in enumerate(text.splitlines(), 1):
        reader.take(number, line)
        if not reader.fence:
            outside.append(line)
    reader.end_paragraph()
    page.pictures = len(_PICTURE.findall("\n".join(outside)))
    page.sentences = [sentence for paragraph in page.paragraphs for sentence in _sentences(paragraph)]
    return page
