"""Lock files of torch's extension cache that a killed process left behind.

torch's `FileBaton` (2.13) holds a lock by the existence of a file `lock` in an extension's folder, and waits for its
end without limit and without a word: a process killed in a build makes each later one hang. DeepSpeed builds such
extensions in users' own scripts (`deepspeed_shm_comm` at the start of any ZeRO training on CPU ranks).
"""

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

import psutil

_LOCAL_FILE_SYSTEMS = frozenset(["btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"])
"""Kinds of file systems that only one host has."""
_LONGEST_BUILD_S = 900.0
"""Age in seconds at which a lock on a file system that other hosts may share counts as left behind. A build takes one to
three minutes."""


def remove_stale(environment: Mapping[str, str]) -> list[Path]:
    """Remove lock files in torch's extension cache that no process holds any more, and return them. The given
    environment variables say where the cache is.

    Locks that another user could hold stay, because this process cannot see whether their holders are alive. So do young
    locks in a folder that other hosts may share, such as a home folder over NFS.
    """
    # Before the scan: a lock that is made during it belongs to a live build.
    identities = {lock: _identity(lock) for lock in _locks(environment) if _is_private(lock) and _is_of_this_host(lock)}
    if not identities:
        return []
    # The holder keeps the file open until it releases it; the kernel closes it with the process.
    open_locks = _open_files(set(identities.values()))
    removed = []
    for lock, identity in identities.items():
        with contextlib.suppress(OSError):
            if identity not in open_locks and _identity(lock) == identity:
                lock.unlink()
                removed.append(lock)
    return removed


def _is_private(lock: Path) -> bool:
    """Whether only processes of this user can hold the lock. This is so if the lock file and its folder belong to the
    user and are no symbolic links."""
    try:
        file, folder = lock.lstat(), lock.parent.lstat()
    except OSError:
        return False
    is_own = file.st_uid == folder.st_uid == os.geteuid()
    return is_own and stat.S_ISREG(file.st_mode) and stat.S_ISDIR(folder.st_mode) and not folder.st_mode & stat.S_IWOTH


def _is_of_this_host(lock: Path) -> bool:
    """Whether no process of another host can hold the lock. This is so on a file system of this host alone, and for a
    lock that is older than any build."""
    with contextlib.suppress(OSError):
        return _file_system(lock.parent) in _LOCAL_FILE_SYSTEMS or time.time() - lock.stat().st_mtime > _LONGEST_BUILD_S
    return False


def _file_system(folder: Path) -> str:
    """Kind of a folder's file system, such as `ext4`; empty if it is unknown."""
    kinds = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    folder = folder.resolve()
    return next((kinds[place] for place in (folder, *folder.parents) if place in kinds), "")


def _locks(environment: Mapping[str, str]) -> Iterable[Path]:
    """Lock files in torch's cache of C++ extensions, whose folder is found as torch finds it (2.13, `_get_build_directory`)."""
    if stated := environment.get("TORCH_EXTENSIONS_DIR"):
        return Path(stated).glob("*/lock")
    home = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home()) / ".cache"
    # In a folder of its own for each version of Python and CUDA.
    return Path(home).glob("torch_extensions/*/*/lock")


def _open_files(identities: Set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return those of the given files, named by device and inode, that a process visible to this one has open."""
    open_identities = set()
    for folder in Path("/proc").glob("[0-9]*/fd"):
        # Processes end meanwhile, and those of other users cannot be read.
        with contextlib.suppress(OSError):
            for descriptor in os.scandir(folder):
                with contextlib.suppress(OSError):
                    identity = _identity(Path(descriptor.path))
                    if identity in identities:
                        open_identities.add(identity)
    return open_identities


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
