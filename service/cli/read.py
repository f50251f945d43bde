"""Read a file that the user names; errors name the file and the remedy."""

import json
from pathlib import Path

from pydantic import JsonValue

from shardtune.api_schemas.access import regular_file
from shardtune.service.cli.errors import InputError

_MOST_SHOWN = 500


def read_text(path: Path, name: str, remedy: str, most_bytes: int = regular_file.MOST_BYTES) -> str:
    """Read the text of a regular file whose size is at most `most_bytes`.

    Raises:
        InputError: the file cannot be read; the message holds `name`, the path, the reason and `remedy`.
    """
    try:
        return regular_file.read_text(path, most_bytes)
    except (OSError, ValueError) as error:
        raise InputError(f"{name} ({path!s:.{_MOST_SHOWN}}) cannot be read: {_reason(error)}; {remedy}") from None


def _reason(error: OSError | ValueError) -> str | None:
    if isinstance(error, OSError):
        return error.strerror
    if isinstance(error, regular_file.IrregularFile):
        return str(error)
    # A UnicodeDecodeError names a byte and an offset, which help nobody who saved a file as UTF-16.
    is_content = isinstance(error, UnicodeDecodeError)
    return "it is not UTF-8 text" if is_content else "no file can have this name"


def is_folder(path: Path) -> bool:
    """Whether a path is a folder. A path that is too long or has a NUL character gives False, not an error."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def exists(path: Path) -> bool:
    """Whether a path exists. A path that no file can have, such as one that is too long, gives False, not an error."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def parse_json(path: Path, content: str) -> JsonValue:
    """Parse a file's text as JSON.

    Raises:
        InputError: the text does not parse; the message holds line and column.
    """
    try:
        # Editors on Windows begin a file with a mark, which JSON lets a reader ignore.
        value: JsonValue = json.loads(content.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}, line {error.lineno}, column {error.colno}: {error.msg}; correct the JSON there"
        ) from None
    # Python reads no number of more than 4,300 digits.
    except ValueError:
        raise InputError(f"file ({path}) has a number of thousands of digits; correct it") from None
    return value
