"""Files of a SQLite database: private to their user, and written in a way that their file system allows."""

import contextlib
import logging
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

log = logging.getLogger(__name__)

MOUNTS = Path("/proc/self/mountinfo")
"""The kernel's table of mounted file systems (proc_pid_mountinfo(5))."""
_NETWORK = re.compile(
    r"nfs4?|cifs|smb3|smbfs|9p|lustre|gpfs|beegfs|ceph|afs|pvfs2|orangefs|panfs|wekafs|ocfs2|gfs2|glusterfs"
    r"|fuse\.(?:sshfs|glusterfs|ceph\S*|s3fs|juicefs|gcsfuse|rclone|beegfs\S*|lustre\S*)"
)
"""Types of file systems whose files several hosts can write."""
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Journal:
    """Journal by which SQLite makes transactions atomic."""

    mode: Literal["WAL", "TRUNCATE"]
    synchronous: Literal["NORMAL", "FULL"]


_LOCAL_JOURNAL = Journal("WAL", "NORMAL")
# Without WAL a power cut after NORMAL can damage the file (sqlite.org/pragma.html#pragma_synchronous).
_NETWORK_JOURNAL = Journal("TRUNCATE", "FULL")


def journal_of(database: Path, mounts: Path = MOUNTS) -> Journal:
    """Choose the journal of a database file: WAL, except on a network file system.

    WAL keeps its index in memory that only processes of one host can share. Two hosts with one file would damage it
    (sqlite.org/wal.html), such as a requeued job that starts while its predecessor still runs elsewhere.
    """
    kind = file_system(database, mounts)
    if kind is None or not _NETWORK.fullmatch(kind):
        return _LOCAL_JOURNAL
    _warn(database, kind)
    return _NETWORK_JOURNAL


@cache
def _warn(database: Path, kind: str) -> None:
    """Log the warning about a database on a network file system only once per process, although the process opens the
    database file several times."""
    log.warning(
        "database_url (%s) lies on a network file system (%s), where SQLite is slow: name a file on a local disk, or use "
        "Postgres",
        database,
        kind,
    )


def file_system(path: Path, mounts: Path = MOUNTS) -> str | None:
    """Type of the file system on which a path lies; None if the kernel's table of file systems does not contain it."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    resolved = path.resolve()
    best_length, kind = -1, None
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, types = before.split(), after.split()
        if len(fields) < 5 or not types:
            continue
        point = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        # The last of equal mount points lies over the earlier ones.
        if resolved.is_relative_to(point) and len(point.parts) >= best_length:
            best_length, kind = len(point.parts), types[0]
    return kind


def make_private(_dialect: Any, _record: Any, arguments: list[Any], _options: dict[str, Any]) -> None:
    """Create the database file, readable by its user only, before SQLite creates it as the umask allows.

    The file holds hashes of keys, and SQLite gives its journal files the same permissions. An existing file keeps the
    permissions that its owner has given it. It is not opened, because closing it would release the locks that SQLite
    holds on it in this process (sqlite.org/howtocorrupt.html, 2.2).
    """
    path = arguments[0] if arguments else None
    # SQLite says better what is wrong with a folder or a file that cannot be written.
    with contextlib.suppress(OSError):
        if isinstance(path, str) and not path.startswith("file:"):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
