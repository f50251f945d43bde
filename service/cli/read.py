"""Read a file that the user names; errors name the file and the remedy."""

import json
from pathlib import Path

from pydantic import JsonValue

from shardtune.service.cli.errors import InputError


def read_text(path: Path, name: str, remedy: str) -> str:
    """Read the text of a file.

    Raises:
        InputError: the file cannot be read; the message holds `name`, the path, the reason and `remedy`.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        # A UnicodeDecodeError names a byte and an offset, which help nobody who saved a file as UTF-16.
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{name} ({path}) cannot be read: {reason}; {remedy}") from None


def parse_json(path: Path, text: str) -> JsonValue:
    """Parse a file's text as JSON.

    Raises:
        InputError: the text does not parse; the message holds line and column.
    """
    try:
        value: JsonValue = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}, line {error.lineno}, column {error.colno}: {error.msg}; correct the JSON there"
        ) from None
    return value
