"""Checkpoint of a trial on disk: free space, timed saving and loading, and training state besides the weights.

The trainer writes the weights. Training data is a pure function of the step, so the number of steps is the
position in the data.
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
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.rank_reports import CheckpointPart
from shardtune.api_schemas.trials.resume_check import MOST_BYTES_PER_PARAMETER
from shardtune.workers.rank.classify import SetupError
from shardtune.workers.rank.device import clock
from shardtune.workers.rank.measure.disk_rate import disk_rate, written_bytes
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.strategies.base import Trainer
from shardtune.workers.rank.trial_dir import ProgressFile

_POSITION = "position.json"
"""Name of the file that is written last and thereby marks a checkpoint as complete."""
_PROBE = 64 << 20
"""Size in bytes of a test file, by which the disk's rate is measured before a checkpoint is saved."""
_FULL = 64 << 20
"""Number of free bytes on the disk. If fewer are free after a failed save, the disk counts as full."""


class CheckpointFolder:
    """Checkpoint of one trial, in a folder that all its ranks see."""

    def __init__(self, path: Path, place: RankContext, progress: ProgressFile) -> None:
        self._path, self._place, self._progress = path, place, progress

    def save(self, trainer: Trainer, step: int, parameters: int) -> CheckpointPart:
        """Save a checkpoint after `step` steps of a model that has `parameters` parameters. All ranks must call this
        together.

        Raises:
            SetupError: the disk has too little free space.
        """
        self._path.mkdir(parents=True, exist_ok=True)
        require_room(self._path, parameters * MOST_BYTES_PER_PARAMETER + _PROBE)
        with self._report_progress("saving", step), full_disk_as_setup_error(self._path):
            disk = disk_rate(self._path) if self._place.rank == 0 else None
            written_before, begin = written_bytes(), self._synchronized_s()
            trainer.save(self._path)
            _save_random_state(self._random_state, self._place)
            # All ranks have written by then; one rank per host flushes, since a host has one page cache.
            self._synchronized_s()
            if self._place.local_rank == 0:
                _write_through(self._path)
        seconds, written_after = self._synchronized_s() - begin, written_bytes()
        written = None if written_before is None or written_after is None else written_after - written_before
        if self._place.rank == 0:
            (self._path / _POSITION).write_text(json.dumps({"step": step}))
        size, files = _size(self._path)
        return CheckpointPart(
            step=step, seconds=seconds, checkpoint_bytes=size, files=files, written_bytes=written, disk=disk
        )

    def load(self, trainer: Trainer) -> CheckpointPart:
        """Load the saved checkpoint into the trainer. All ranks must call this together."""
        step = int(json.loads((self._path / _POSITION).read_text())["step"])
        begin = self._synchronized_s()
        with self._report_progress("loading", step):
            trainer.load(self._path)
            _load_random_state(self._random_state, self._place)
        seconds = self._synchronized_s() - begin
        size, files = _size(self._path)
        return CheckpointPart(step=step, seconds=seconds, checkpoint_bytes=size, files=files)

    @property
    def _random_state(self) -> Path:
        return self._path / f"random_state_{self._place.rank}.pt"

    def _synchronized_s(self) -> float:
        """Wait for all ranks at a barrier; returns this rank's clock, in seconds, after the barrier."""
        dist.barrier()
        return clock(self._place.accelerator)

    def _report_progress(
        self, phase: Literal["saving", "loading"], step: int
    ) -> contextlib.AbstractContextManager[None]:
        """Context in which the progress file is written regularly. Otherwise a save that takes long would count as
        hanging."""
        return self._progress.refreshed(Progress(phase=phase, step=step))


def require_room(folder: Path, needed: int) -> None:
    """Check that the folder's disk has `needed` bytes free.

    Raises:
        SetupError: the disk has less free space; the message names the needed and the free bytes.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SetupError(
            f"the checkpoint may take {needed / GIB:.2f} GiB, but work_dir's disk ({folder}) has {free / GIB:.2f} GiB free; "
            "free some space, choose another work directory, or set budget.resume_check to false"
        )


@contextlib.contextmanager
def full_disk_as_setup_error(folder: Path) -> Iterator[None]:
    """Context that raises `SetupError` if saving failed because the disk is full, for which the configuration is not to
    blame.

    The libraries that write report a full disk in many ways. The partial checkpoint is removed, because the rank's
    report needs space, too.

    Raises:
        SetupError: the disk is full; raised in place of the library's exception.
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
    """Whether an exception, or one of its causes, reports that the disk is full or the user's quota is used up."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


def _write_through(folder: Path) -> None:
    """Write all files of a checkpoint to the disk and drop them from the kernel's cache. Otherwise the times of saving
    and loading would not include the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _size(folder: Path) -> tuple[int, int]:
    """Size of a folder: bytes and number of files."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return sum(sizes), len(sizes)


def _save_random_state(path: Path, place: RankContext) -> None:
    """Save the states of random number generators. A user's own model may draw random numbers while it trains; models
    of transformers are built so that they draw none."""
    torch.save({"cpu": torch.get_rng_state(), "device": place.accelerator.random_state()}, path)


def _load_random_state(path: Path, place: RankContext) -> None:
    state = torch.load(path, weights_only=True)
    torch.set_rng_state(state["cpu"])
    if state["device"] is not None:
        place.accelerator.set_random_state(state["device"])
