"""Pieces of Markdown that generated sections are made of."""

import re
from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Table with a line for each row; without rows an empty text."""
    lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *lines])


def cell(text: str) -> str:
    """Text on one line, with its pipes escaped; a pipe within backticks needs that, too."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def code(text: str) -> str:
    """Text in backticks."""
    return f"`{text}`"


def anchored_code(text: str, anchor: str) -> str:
    """Text in backticks that can be linked to as `#anchor`."""
    return f"`{text}`{{ #{anchor} }}"


def described(meaning: str, *facts: str) -> str:
    """Text of a table cell: a meaning, and below it in small letters the facts that are not empty."""
    line = " · ".join(fact for fact in facts if fact)
    return "<br>".join(part for part in (cell(meaning), f"<small>{line}</small>" if line else "") if part)


def heading(level: int, text: str, anchor: str) -> str:
    """Heading that keeps its address when its text changes."""
    return f"{'#' * level} {text} {{ #{anchor} }}"


def slug(text: str) -> str:
    """Part of an address made from a name: lower case, digits and single hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def sentence(text: str) -> str:
    """Text that begins with a capital letter and ends with a full stop."""
    text = text.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":", "`")) else ".")


def paragraphs(*parts: str) -> str:
    """The parts that are not empty, with a blank line between them."""
    return "\n\n".join(part for part in parts if part)
