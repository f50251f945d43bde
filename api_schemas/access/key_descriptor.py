"""Read a worker's API key from an inherited descriptor, once and within a time limit."""

import os
import select
import time

from shardtune.api_schemas.access.key_text import MAX_KEY_BYTES, require_key

DESCRIPTOR_VARIABLE = "SHARDTUNE_API_KEY_FD"
"""Name of the environment variable that holds the number of an open file descriptor. The worker reads its API key from
it once. A file that the worker can open could also be read by its ranks, which run as the same user; a descriptor
leaves nothing behind."""

_STANDARD_STREAMS = range(3)
_REMEDY = "name the number of an open descriptor, such as 0 with `< worker.key`"


def read(text: str, patience_s: float) -> str:
    """Read an API key from the file descriptor with this number, up to its end, and close the descriptor.

    Raises:
        ValueError: the text is no number of an open descriptor; or what was read is no key, or did not end in time.
    """
    if not (text.isascii() and text.isdecimal()):
        # Not even its beginning is shown: who confuses two variables has written the key here.
        raise ValueError(f"{DESCRIPTOR_VARIABLE} (not shown) is no number; {_REMEDY}")
    source = f"{DESCRIPTOR_VARIABLE} ({text:.20})"
    try:
        descriptor = int(text)
        content = _read_to_its_end(descriptor, patience_s)
        _close(descriptor)
    except TimeoutError:
        raise ValueError(
            f"{source} did not end within {patience_s:g} s; close its writing end once the key is written, or {_REMEDY}"
        ) from None
    except (OSError, OverflowError, ValueError) as error:
        raise ValueError(f"{source} cannot be read: {error}; {_REMEDY}") from None
    if len(content) > MAX_KEY_BYTES:
        raise ValueError(f"{source} has more than {MAX_KEY_BYTES} bytes; {_REMEDY}")
    try:
        key = content.decode().strip()
    except UnicodeDecodeError:
        raise ValueError(f"{source} is no text; {_REMEDY}") from None
    if not key:
        raise ValueError(f"{source} is empty; {_REMEDY}")
    require_key(key, source)
    return key


def _read_to_its_end(descriptor: int, patience_s: float) -> bytes:
    """Return the content of the file descriptor. If it has too many bytes for a key, return only the first ones.

    Raises:
        TimeoutError: the end did not come in time, such as of a pipe whose writing end somebody keeps open.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    until_s = time.monotonic() + patience_s
    content = b""
    while len(content) <= MAX_KEY_BYTES:
        # Also for a descriptor that does not block, where reading too early would be an error.
        if not poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
            raise TimeoutError
        piece = os.read(descriptor, MAX_KEY_BYTES)
        if not piece:
            break
        content += piece
    return content


def _close(descriptor: int) -> None:
    """Close the file descriptor. If it is a standard stream, replace it by the null device. Otherwise the next file
    that this process opens would take its number, and receive what is printed or be read as standard input."""
    if descriptor not in _STANDARD_STREAMS:
        os.close(descriptor)
        return
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, descriptor)
    os.close(null)
