"""Look up a client's API key. It is never on a command line, which every user of the machine can read."""

import ctypes
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

KEY_VARIABLE = "SHARDTUNE_API_KEY"
FILE_VARIABLE = "SHARDTUNE_API_KEY_FILE"
"""Name of the variable with the path of the key's file, which another user cannot read out of the process's
environment."""


class KeySource:
    """API key, and the file it comes from. The file has another key once the key was rotated."""

    def __init__(self, key: str | None = None, file: Path | None = None) -> None:
        """Take a key or a file with one; neither where the service has no keys.

        Raises:
            ValueError: the file cannot be read, or is empty.
        """
        assert key is None or file is None
        self.file = file
        self.key = key if file is None else _key_of(file)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "KeySource":
        """Return the key of the environment, or of the file it names.

        Raises:
            ValueError: the file cannot be read, or is empty.
        """
        if key := environment.get(KEY_VARIABLE, "").strip():
            return cls(key)
        path = environment.get(FILE_VARIABLE)
        return cls(file=Path(path)) if path else cls()

    @classmethod
    def take_from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> "KeySource":
        """Take the key and remove it from the environment: later child processes do not inherit it, and others
        cannot read it out of /proc.

        Raises:
            ValueError: the file cannot be read, or is empty.
        """
        source = cls.from_environment(environment)
        if environment is os.environ:
            _overwrite(KEY_VARIABLE)
        environment.pop(KEY_VARIABLE, None)
        environment.pop(FILE_VARIABLE, None)
        return source

    def reread(self) -> bool:
        """Read the file again and return whether the key changed. A file that is being written at the moment has
        none."""
        if self.file is None:
            return False
        try:
            key = _key_of(self.file)
        except ValueError:
            return False
        is_new, self.key = key != self.key, key
        return is_new


def _overwrite(name: str) -> None:
    """Blank a variable's value in memory: /proc/PID/environ shows what the process was started with, whatever it has
    removed since, and a rank that runs other people's code has the same user."""
    libc = ctypes.CDLL(None)
    libc.getenv.argtypes, libc.getenv.restype = [ctypes.c_char_p], ctypes.c_void_p
    address = libc.getenv(name.encode())
    if address:
        ctypes.memset(address, ord("x"), len(ctypes.string_at(address)))


def _key_of(file: Path) -> str:
    try:
        key = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{FILE_VARIABLE} ({file}) cannot be read: {error}; name a readable file") from None
    if not key:
        raise ValueError(f"{FILE_VARIABLE} ({file}) is empty; write the key into it")
    return key
