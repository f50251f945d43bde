"""Read a file its user names, with errors that say what to correct."""

import json
from pathlib import Path

from pydantic import JsonValue

from shardtune.service.cli.errors import InputError


def text_of(path: Path, name: str, remedy: str) -> str:
    """The text of a file.

    Raises:
        InputError: `name` (path) cannot be read, why, and the remedy.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{name} ({path}) cannot be read: {reason}; {remedy}") from None


def json_of(path: Path, text: str) -> JsonValue:
    """The JSON value in a file's text.

    Raises:
        InputError: it does not parse, with line and column.
    """
    try:
        value: JsonValue = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}, line {error.lineno}, column {error.colno}: {error.msg}; correct the JSON there"
        ) from None
    return value
