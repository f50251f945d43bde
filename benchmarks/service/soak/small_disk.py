"""A small disk of its own (tmpfs) for a database, which can be filled; needs root."""

import ctypes
import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

_CLONE_NEWNS = 0x20000
_LAST_BYTES, _BLOCK_BYTES = 1 << 22, 4096


class SmallDisk:
    """A tmpfs in a mount namespace of this process and its later children: it vanishes with them."""

    def __init__(self, mib: int) -> None:
        """Raises:
        PermissionError: this user may not mount.
        """
        if os.getuid() != 0:
            raise PermissionError("a disk that can be filled is mounted by root alone; leave it out with --no-disk")
        self._mib = mib

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="shardtune-disk-"))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "no mount namespace of one's own; leave the disk out with --no-disk")
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self._mib}m,mode=0755", "tmpfs", self.folder], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", self.folder], check=True)
        self.folder.rmdir()

    def fill(self) -> None:
        """Take all space that is left."""
        status = os.statvfs(self.folder)
        with suppress(OSError), self._filler.open("wb", buffering=0) as filler:
            # The database writes meanwhile: the last blocks are taken one by one until there are none.
            os.posix_fallocate(filler.fileno(), 0, max(1, status.f_bavail * status.f_frsize - _LAST_BYTES))
            filler.seek(0, os.SEEK_END)
            while True:
                filler.write(bytes(_BLOCK_BYTES))

    def free(self) -> None:
        """Give the taken space back."""
        self._filler.unlink(missing_ok=True)

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"
