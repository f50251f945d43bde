"""Read a client's API key from the environment, a file or a descriptor. Command-line arguments are not used, since every
user of the machine can read them."""

import ctypes
import hashlib
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from shardtune.api_schemas.access import key_descriptor, regular_file
from shardtune.api_schemas.access.key_descriptor import DESCRIPTOR_VARIABLE
from shardtune.api_schemas.access.key_text import MAX_KEY_BYTES, contains_key, require_key

_PR_SET_DUMPABLE = 4
KEY_VARIABLE = "SHARDTUNE_API_KEY"
FILE_VARIABLE = "SHARDTUNE_API_KEY_FILE"
"""Name of the environment variable that holds the path of a file with the API key. Other users cannot read the file,
whereas a key in the environment itself could leak."""


def hash_of(secret: str) -> str:
    """Hash of an API key's secret. The database stores only this hash."""
    # A plain SHA-256 suffices: secrets are random (256 bits), so a stolen hash cannot be searched.
    return hashlib.sha256(secret.encode()).hexdigest()


class KeySource:
    """API key of a client, and the file from which it was read, if any. After a rotation of the key, the file contains
    another key."""

    def __init__(self, key: str | None = None, file: Path | None = None) -> None:
        """Create the source from a key, or from a file that contains one. If the service requires no keys, neither is
        given.

        Raises:
            ValueError: the file cannot be read, or is empty; or the key has characters that no key has. The message does
                not show the key.
        """
        assert key is None or file is None
        self.file = file
        if key is not None:
            require_key(key, "the API key (not shown)")
        self.key = key if file is None else _key_of(file)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "KeySource":
        """Read the API key from the environment, or from the file that the environment names.

        Raises:
            ValueError: the file cannot be read, or is empty.
        """
        if key := environment.get(KEY_VARIABLE, "").strip():
            return cls(key)
        path = environment.get(FILE_VARIABLE)
        return cls(file=Path(path)) if path else cls()

    @classmethod
    def take_from_environment(
        cls, environment: MutableMapping[str, str] = os.environ, patience_s: float = 60.0
    ) -> "KeySource":
        """Read the API key and remove it from the environment. Child processes then do not inherit it, and other
        processes cannot read it from /proc, neither in the environment nor in the memory of this process.

        If the environment names an open file descriptor, the key is read from it instead of from a file, for at most
        `patience_s` seconds, and the descriptor is closed.

        Raises:
            ValueError: the file or the descriptor cannot be read, is empty or does not end; or there is both a key and
                a descriptor.
        """
        descriptor = environment.pop(DESCRIPTOR_VARIABLE, None)
        if descriptor is None:
            source = cls.from_environment(environment)
        elif environment.get(KEY_VARIABLE, "").strip():
            # An unread pipe would keep its key, and other processes that hold the pipe show it to ranks.
            raise ValueError(f"{KEY_VARIABLE} (not shown) and {DESCRIPTOR_VARIABLE} are both set; unset one of them")
        else:
            source = cls(key_descriptor.read(descriptor, patience_s))
        if environment is os.environ:
            _overwrite(KEY_VARIABLE)
            _deny_memory_to_others()
        environment.pop(KEY_VARIABLE, None)
        environment.pop(FILE_VARIABLE, None)
        return source

    def reread(self) -> bool:
        """Read the file of the API key again, and return whether the key changed. A file that is empty, because it is
        just being written, leaves the key unchanged."""
        if self.file is None:
            return False
        try:
            key = _key_of(self.file)
        except ValueError:
            return False
        is_new, self.key = key != self.key, key
        return is_new


def _overwrite(name: str) -> None:
    """Overwrite the value of an environment variable in the memory of this process. /proc/PID/environ shows the initial
    environment even after a variable was removed. Ranks, which run third-party code as the same user, could read it
    there."""
    libc = ctypes.CDLL(None)
    libc.getenv.argtypes, libc.getenv.restype = [ctypes.c_char_p], ctypes.c_void_p
    address = libc.getenv(name.encode())
    if address:
        ctypes.memset(address, ord("x"), len(ctypes.string_at(address)))


def _deny_memory_to_others() -> None:
    """Prevent other processes of this user, such as ranks, from reading the memory of this process or attaching a
    debugger to it."""
    # A child is readable again once it has executed a program: only this process becomes opaque (PR_SET_DUMPABLE(2const)).
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _key_of(file: Path) -> str:
    if contains_key(str(file)):
        raise ValueError(
            f"{FILE_VARIABLE} (not shown) contains an API key; name a file with the key, or set {KEY_VARIABLE}"
        )
    try:
        key = regular_file.read_text(file, MAX_KEY_BYTES).strip()
    except (OSError, ValueError) as error:
        raise ValueError(f"{FILE_VARIABLE} ({file}) cannot be read: {error}; name a readable file") from None
    if not key:
        raise ValueError(f"{FILE_VARIABLE} ({file}) is empty; write the key into it")
    require_key(key, f"{FILE_VARIABLE} ({file})")
    return key
