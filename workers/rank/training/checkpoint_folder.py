"""A checkpoint on the disk: room for it, saving and loading with a clock, and what training needs besides weights.

What is in it comes from the trainer. Data is a pure function of the step, so its position is the number of steps.
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.trials.measurements import CheckpointPart, Progress
from shardtune.workers.rank.classify import SetupError
from shardtune.workers.rank.device import clock
from shardtune.workers.rank.measure.disk_rate import disk_rate, written_bytes
from shardtune.workers.rank.rank_context import Place
from shardtune.workers.rank.strategies.base import Trainer
from shardtune.workers.rank.trial_dir import ProgressFile

_POSITION = "position.json"
"""Written last: without it the checkpoint is not whole."""
_BYTES_PER_PARAMETER = 16
"""At most: an fp32 master and two moments, and ZeRO adds the weights it computes with."""
_PROBE = 64 << 20
"""What finding out the disk's rate takes meanwhile."""
_FULL = 64 << 20
"""Where less than this is free after a save has failed, it failed for want of room."""


class CheckpointFolder:
    """One checkpoint of one trial, in the folder that all its ranks see."""

    def __init__(self, path: Path, place: Place, progress: ProgressFile) -> None:
        self._path, self._place, self._progress = path, place, progress

    def save(self, trainer: Trainer, step: int, parameters: int) -> CheckpointPart:
        """Save after `step` steps of a model with so many parameters. Collective.

        Raises:
            SetupError: the disk has no room for it.
        """
        self._path.mkdir(parents=True, exist_ok=True)
        require_room(self._path, parameters * _BYTES_PER_PARAMETER + _PROBE)
        with self._telling("saving", step), full_disk_named(self._path):
            disk = disk_rate(self._path) if self._place.rank == 0 else None
            before, begin = written_bytes(), self._together()
            trainer.save(self._path)
            _save_random_state(self._random_state, self._place)
            self._together()
            if self._place.local_rank == 0:
                _write_through(self._path)
        seconds, after = self._together() - begin, written_bytes()
        written = None if before is None or after is None else after - before
        if self._place.rank == 0:
            (self._path / _POSITION).write_text(json.dumps({"step": step}))
        size, files = _size(self._path)
        return CheckpointPart(
            step=step, seconds=seconds, checkpoint_bytes=size, files=files, written_bytes=written, disk=disk
        )

    def load(self, trainer: Trainer) -> CheckpointPart:
        """Take over what was saved. Collective."""
        step = int(json.loads((self._path / _POSITION).read_text())["step"])
        begin = self._together()
        with self._telling("loading", step):
            trainer.load(self._path)
            _load_random_state(self._random_state, self._place)
        seconds = self._together() - begin
        size, files = _size(self._path)
        return CheckpointPart(step=step, seconds=seconds, checkpoint_bytes=size, files=files)

    @property
    def _random_state(self) -> Path:
        return self._path / f"random_state_{self._place.rank}.pt"

    def _together(self) -> float:
        """A moment that all ranks have reached."""
        dist.barrier()
        return clock(self._place.accelerator)

    def _telling(self, phase: Literal["saving", "loading"], step: int) -> contextlib.AbstractContextManager[None]:
        """A disk takes as long as it needs."""
        return self._progress.ticking(Progress(phase=phase, step=step))


def require_room(folder: Path, needed: int) -> None:
    """Reject to save so many bytes where there is less space.

    Raises:
        SetupError: with both figures.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SetupError(
            f"the checkpoint may take {needed / GIB:.2f} GiB, but work_dir's disk ({folder}) has {free / GIB:.2f} GiB free; "
            "free some space, choose another work directory, or set budget.resume_check to false"
        )


@contextlib.contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """A disk that runs full while saving is no fault of the configuration; the writers tell of it in many ways.

    What was saved of the checkpoint is removed: the rank's report needs room too.

    Raises:
        SetupError: in place of what such a disk raised.
    """
    try:
        yield
    except Exception as error:  # a border: each backend's writer has errors of its own
        free = shutil.disk_usage(folder).free
        if free < _FULL or _has_no_space(error):
            shutil.rmtree(folder, ignore_errors=True)
            raise SetupError(
                f"work_dir's disk ({folder}) ran full while the checkpoint was saved ({free / GIB:.2f} GiB free); "
                "free some space, choose another work directory, or set budget.resume_check to false"
            ) from error
        raise


def _has_no_space(error: BaseException | None) -> bool:
    """Somewhere in the chain the kernel said so: no space, or the quota is used up."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


def _write_through(folder: Path) -> None:
    """To the disk and out of the kernel's cache, so that saving and loading are what they are called."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _size(folder: Path) -> tuple[int, int]:
    """Bytes and files."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return sum(sizes), len(sizes)


def _save_random_state(path: Path, place: Place) -> None:
    """A model of the user's own may draw numbers while it trains; ours do not."""
    torch.save({"cpu": torch.get_rng_state(), "device": place.accelerator.random_state()}, path)


def _load_random_state(path: Path, place: Place) -> None:
    state = torch.load(path, weights_only=True)
    torch.set_rng_state(state["cpu"])
    if state["device"] is not None:
        place.accelerator.set_random_state(state["device"])
