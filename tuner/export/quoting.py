"""Words from outside in generated files: a model's name, its classes and its device are what a user or a worker says.

Every form puts them in by one of these, so that a name changes a literal or a comment, and never the code around it.
For shell words there is `shlex.quote`, and YAML and JSON are written by their libraries.
"""

import json
from typing import Any

_LONGEST_REMARK = 300
"""Characters of one word from outside in a comment."""


def remark(text: str) -> str:
    """The text for a comment of any language: one line, of printable characters only.

    Line ends are what YAML and Python take for one, too (NEL, U+2028), and what turns the reading direction is no text.
    """
    printable = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(printable.split())[:_LONGEST_REMARK]


def in_docstring(text: str) -> str:
    """The text for the inside of a docstring, which neither a quotation mark nor a backslash ends."""
    return remark(text).replace("\\", "\\\\").replace('"', '\\"')


def literal(value: Any) -> str:
    """The value as Python source, with double quotes where that costs no escape."""
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


def toml_string(text: str) -> str:
    """The text as a TOML basic string, which is JSON's but for one control character (toml.io, v1.0.0)."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
