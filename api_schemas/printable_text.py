"""Make text of others safe to print: a terminal obeys control characters, and some of them hide or reorder text."""

import re

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Pattern for characters that are not printed as they are: control characters except tab and newline, marks that
reorder text, and halves of surrogate pairs."""


def printable(text: str) -> str:
    """Return the text with each control character as its escape, such as `\\x1b` for the character that begins a
    terminal's commands."""
    return _CONTROL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]
