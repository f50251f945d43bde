"""Links the first use of each of Shardtune's own words on a page to the glossary, with its meaning as a tooltip.

Readers begin at any page, and few look up a word that they believe to know.
"""

import posixpath
import re
from typing import NamedTuple

from docs.generate import pages

GLOSSARY = "docs/reference/glossary.md"
FOLDERS = ("docs/tutorials/", "docs/how-to/", "docs/explanation/")
"""Folders whose pages are explained. Reference pages are tables, which a link in each cell would make hard to read."""
WORDS = (
    "study",
    "trial",
    "baseline",
    "candidate",
    "pair",
    "verdict",
    "answer",
    "worker",
    "knob",
    "recipe",
    "fingerprint",
    "recommendation",
    "retune",
    "challenge",
    "challenger",
    "incumbent",
    "canary",
    "disturbed",
    "pruned",
    "infeasible",
    "parity",
    "final comparison",
    "validation run",
    "resume check",
    "tuning target",
    "projected",
    "band",
    "finding",
    "gang",
)
"""Words of the glossary that pages explain. Its other words are rare, or are explained where they are used."""
_AMBIGUOUS = frozenset(("answer", "band", "challenge", "finding", "pair", "recommendation", "study"))
"""Words that are verbs, too, or have an everyday meaning: explained after an article or a number only."""
_ARTICLE = r"(?:an?|the|its|your|this|that|each|every|one|no|of|\d+|more) "
_ROW = re.compile(r"^\| ([^|]+) \| (.+) \|$")
_HEADING = re.compile(r"^#{2,} (.+)$")
_MASKED = re.compile(r'`[^`]*`|!?\[[^\]]*\]\([^)"]*(?:"[^"]*")?\)|<[^>]*>|\{[^}]*\}')
"""Parts of a line in which nothing is linked: code, links, HTML and attributes."""
_LEFT_OUT = re.compile(r"^\s*(?:#|\||<|!!!|\?\?\?|===)")
"""Beginnings of lines that are no prose: headings, tables, HTML and boxes."""


class OwnWord(NamedTuple):
    """Word of the glossary."""

    meaning: str
    """Plain text."""
    anchor: str
    """Anchor of the section of the glossary that has the word."""


def own_words(glossary: str) -> dict[str, OwnWord]:
    """Words of the glossary that pages explain.

    Raises:
        ValueError: the glossary lacks one of them.
    """
    found: dict[str, OwnWord] = {}
    anchor = ""
    for line in glossary.splitlines():
        if heading := _HEADING.match(line):
            anchor = pages.heading_slug(heading[1])
        elif row := _ROW.match(line):
            found |= {word: OwnWord(_plain(row[2]), anchor) for word in row[1].split(", ")}
    missing = [word for word in WORDS if word not in found]
    if missing:
        raise ValueError(f"{GLOSSARY} lacks {', '.join(missing)}; add rows, or take the words out of {__name__}")
    return {word: found[word] for word in WORDS}


def _plain(meaning: str) -> str:
    """Meaning without links, code marks and double quotes, as a tooltip shows it."""
    without_references = re.sub(r" \(\[[^\]]*\]\([^)]*\)\)", "", meaning)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", without_references).replace("`", "").replace('"', "'")


def explain(path: str, text: str, words: dict[str, OwnWord]) -> str:
    """Text of a page whose first use of each word leads to the glossary; unchanged outside of `FOLDERS`."""
    if not path.startswith(FOLDERS):
        return text
    address = posixpath.relpath(GLOSSARY, posixpath.dirname(path))
    lines = text.splitlines()
    open_words = dict(words)
    for number, line in pages.prose(pages.numbered(text)):
        if _LEFT_OUT.match(line):
            continue
        for word in sorted(open_words, key=len, reverse=True):
            lines[number - 1], is_linked = _linked(lines[number - 1], word, open_words[word], address)
            if is_linked:
                del open_words[word]
    return "\n".join(lines) + "\n"


def _linked(line: str, word: str, own: OwnWord, address: str) -> tuple[str, bool]:
    """Line in which the first use of a word is a link, and whether there is one."""
    masked = [part.span() for part in _MASKED.finditer(line)]
    for match in _uses(word).finditer(line):
        start, end = match.span("word")
        if not any(begin < end and start < stop for begin, stop in masked):
            link = f'[{line[start:end]}]({address}#{own.anchor} "{own.meaning}"){{ .own-word }}'
            return f"{line[:start]}{link}{line[end:]}", True
    return line, False


def _uses(word: str) -> re.Pattern[str]:
    """Pattern of the forms of a word in prose."""
    plural = f"{word[:-1]}(?:y|ies)" if word.endswith("y") else f"{word}s?"
    before = rf"\b{_ARTICLE}" if word in _AMBIGUOUS else ""
    return re.compile(rf"{before}(?<![\w-])(?P<word>{plural})(?![\w-])", re.IGNORECASE)
