"""Where a client finds its API key: never on a command line, which every user of the machine can read."""

import os
from collections.abc import MutableMapping
from pathlib import Path

KEY_VARIABLE = "SHARDTUNE_API_KEY"
FILE_VARIABLE = "SHARDTUNE_API_KEY_FILE"
"""Names a file that has the key, which another user cannot read out of the process's environment."""


def api_key(environment: MutableMapping[str, str] = os.environ) -> str | None:
    """The key of the environment, or of the file it names.

    Raises:
        ValueError: the file cannot be read, or is empty.
    """
    if key := environment.get(KEY_VARIABLE, "").strip():
        return key
    path = environment.get(FILE_VARIABLE)
    if not path:
        return None
    try:
        key = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{FILE_VARIABLE} ({path}) cannot be read: {error}; name a readable file") from None
    if not key:
        raise ValueError(f"{FILE_VARIABLE} ({path}) is empty; write the key into it")
    return key


def take_api_key(environment: MutableMapping[str, str] = os.environ) -> str | None:
    """The key, removed from the environment, so that processes started later do not have it.

    Raises:
        ValueError: as `api_key`.
    """
    key = api_key(environment)
    environment.pop(KEY_VARIABLE, None)
    environment.pop(FILE_VARIABLE, None)
    return key
