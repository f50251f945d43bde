"""Quoting of untrusted text in generated files: names of models, classes and devices that a user or a worker gives.

Every format inserts these names by one of the module's functions, so that a name changes a literal or a comment, and
never the code around it. Shell words use `shlex.quote`; YAML and JSON are written by their libraries.
"""

from typing import Any

_LONGEST_REMARK = 300
"""Maximum number of characters that a comment in an exported file takes from a user's or a worker's text."""


def remark(text: str) -> str:
    """Text made safe for a comment in an exported file of any language: one line of printable characters only."""
    # YAML and Python also end a line at NEL and U+2028, and a character that turns the reading direction can hide code.
    printable = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(printable.split())[:_LONGEST_REMARK]


def in_docstring(text: str) -> str:
    """Text escaped for the inside of a Python docstring, which neither a quotation mark nor a backslash in the text can
    end."""
    return remark(text).replace("\\", "\\\\").replace('"', '\\"')


def literal(value: Any) -> str:
    """Value as a Python literal in source code, with double quotes where that needs no escape."""
    match value:
        case str():
            text = repr(value)
            return text if '"' in text else f'"{text[1:-1]}"'
        case dict():
            return "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(literal, value)) + "]"
        case tuple():
            return "(" + ", ".join(map(literal, value)) + (",)" if len(value) == 1 else ")")
        case _:
            return repr(value)
