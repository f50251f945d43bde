"""Another user of this machine: a child process without this user's rights, which does something and stays alive."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.requirements import missing

OTHER_UID = 54_321


@contextlib.contextmanager
def acting(action: Callable[[], object]) -> Iterator[int]:
    """Context in which the other user has done something, in a process that lives as long; gives the process id."""
    if os.geteuid() != 0:
        missing("root, to become another user")
    done_read, done_write = os.pipe()
    ends_read, ends_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _act(action, ends_write, done_write, ends_read)
    os.close(done_write)
    os.close(ends_read)
    try:
        assert os.read(done_read, 1) == b"1", "the other user could not do it"
        yield pid
    finally:
        os.close(ends_write)
        os.close(done_read)
        os.waitpid(pid, 0)


def _act(action: Callable[[], object], ends_write: int, done_write: int, ends_read: int) -> None:
    try:
        os.close(ends_write)
        os.setgroups([])
        os.setgid(OTHER_UID)
        os.setuid(OTHER_UID)
        kept = action()
        os.write(done_write, b"1")
        os.read(ends_read, 1)
        del kept
    finally:
        os._exit(0)


@contextlib.contextmanager
def place_of_all_users() -> Iterator[Path]:
    """Folder in which every user can create files and nobody can rename another's, as /tmp; pytest's own folders are
    closed to other users."""
    path = Path(tempfile.mkdtemp(prefix="everybody-"))
    path.chmod(0o1777)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
