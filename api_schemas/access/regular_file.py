"""Open files that people name: regular files of bounded size only.

A named pipe without a writer would be waited for without end, and a device such as /dev/zero has no end.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 64 << 20
"""Default maximum number of bytes of a file that is read as a whole."""

_KINDS = {
    stat.S_IFDIR: "it is a folder",
    stat.S_IFIFO: "it is a pipe; write its content to a file",
    stat.S_IFCHR: "it is a device",
    stat.S_IFBLK: "it is a device",
    stat.S_IFSOCK: "it is a socket",
}


class IrregularFile(ValueError):
    """Error: a path does not name a regular file, or the file is too large. The message gives the reason."""


class TooLarge(IrregularFile):
    """Error: a file has more bytes than the program that reads it accepts."""


def open_regular(path: Path, most_bytes: int = MOST_BYTES) -> BinaryIO:
    """Open a regular file of at most `most_bytes` for reading, without waiting even if the path names a pipe or a
    device.

    Raises:
        IrregularFile: it is a folder, a pipe, a device or a socket, or no file can have its name.
        TooLarge: the file has more than `most_bytes`.
        OSError: it cannot be opened.
    """
    # Python's own error, "embedded null byte", helps nobody.
    if "\0" in str(path):
        raise IrregularFile("no file can have this name, with a NUL character")
    # Before the file is opened as well: opening a tape or a terminal has effects.
    _require_regular(path.stat(), most_bytes)
    # O_NONBLOCK: what was a file a moment ago may be a pipe now.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
    try:
        _require_regular(os.fstat(file.fileno()), most_bytes)
    except BaseException:
        file.close()
        raise
    return file


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """Read a regular file of at most `most_bytes` as UTF-8 text.

    Raises:
        IrregularFile: see `open_regular`.
        OSError: it cannot be read.
        UnicodeDecodeError: it is not UTF-8.
    """
    with open_regular(path, most_bytes) as file:
        # Files of /proc have a size of 0, and others may grow.
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise TooLarge(_too_large(len(content), most_bytes))
    return content.decode().replace("\r\n", "\n")


def _require_regular(found: os.stat_result, most_bytes: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise IrregularFile(_KINDS.get(stat.S_IFMT(found.st_mode), "it is no regular file"))
    if found.st_size > most_bytes:
        raise TooLarge(_too_large(found.st_size, most_bytes))


def _too_large(size: int, most_bytes: int) -> str:
    return f"it has {size:,} bytes, and at most {most_bytes:,} are read"
