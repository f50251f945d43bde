"""Folders that nothing uses any more: in a work directory those of killed measurements of the hardware, and compilers' caches for
processors or releases that no worker on this folder has any more; in a shared folder the checkpoints of killed workers."""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

UNUSED_CACHE_S = 90 * 86400.0
"""Seconds without a use after which a cache of compiled code is removed: what it holds can be compiled again."""
_MEASUREMENT_S = 3600.0
"""Age in seconds of a measurement's folder that no live measurement has: its ranks end after five minutes."""

_CHECKPOINT_S = 7 * 86400.0
"""Age in seconds of a checkpoint in a shared folder that no live resume check has: its run would be over its deadline, which for
405 billion parameters is 36 hours away."""
_CHECKPOINT_NAME = re.compile(r"(run-[0-9a-f]{16})-([0-9]+)")
"""Name of the checkpoint of a run that the service gave out: its id and attempt. Folders of other names are not ours to remove:
`run-trial` and people choose them, and hosts may keep their trial directories there, in the folder of this user."""


def mark_used(folder: Path) -> None:
    """Record that a folder, which is made if needed, is used now."""
    folder.mkdir(exist_ok=True)
    # Without the right to do so, as in a folder that another user has made, the code within it is still of use.
    with contextlib.suppress(OSError):
        os.utime(folder)


def remove(work_dir: Path) -> None:
    """Remove what killed measurements have left in a work directory, and its unused caches of compiled kernels."""
    remove_unused(work_dir.glob("hardware-*/"), _MEASUREMENT_S)
    remove_unused(work_dir.glob("torchinductor-*/"), UNUSED_CACHE_S)


def remove_checkpoints(shared_dir: Path, name: str) -> None:
    """Remove checkpoints that killed workers have left in a shared folder: those of earlier attempts at the run that the
    checkpoint `name` (run and attempt) belongs to, and those that are older than any resume check. Folders with names of another
    form stay."""
    own = _CHECKPOINT_NAME.fullmatch(name)
    for folder in shared_dir.glob("run-*/"):
        checkpoint = _CHECKPOINT_NAME.fullmatch(folder.name)
        if checkpoint is None:
            continue
        # The service gives out a run again only after the earlier lease, with which its ranks have ended.
        is_earlier = own is not None and own[1] == checkpoint[1] and int(checkpoint[2]) < int(own[2])
        remove_unused([folder], 0.0 if is_earlier else _CHECKPOINT_S)


def remove_unused(folders: Iterable[Path], unused_s: float) -> None:
    """Remove those of the folders that belong to this user and have not changed for that many seconds.

    The time is that of the folder and of its entries. Others may use a young folder: unlike hosts can share a home
    folder.
    """
    for folder in folders:
        # Another process may remove it meanwhile.
        with contextlib.suppress(OSError):
            is_own = not folder.is_symlink() and folder.is_dir() and folder.stat().st_uid == os.geteuid()
            if is_own and time.time() - _changed_at(folder) > unused_s:
                shutil.rmtree(folder, ignore_errors=True)


def _changed_at(folder: Path) -> float:
    """Time of the last change of a folder or of an entry in it."""
    return max(path.lstat().st_mtime for path in (folder, *folder.iterdir()))
