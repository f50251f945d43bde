"""Trial directory as a rank uses it: reads the task, writes progress and the rank's report."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter

from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.leases import Task
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.api_schemas.trials.rehearsals import RehearsalReport

_TASK: TypeAdapter[Task] = TypeAdapter(Task)
_TICK_S = 5.0
"""Seconds between writes of the progress file during a long operation."""
_THROTTLE_S = 0.5
"""Minimum seconds between two writes of the progress file while steps are timed, because each write takes some time
from them."""


def read_task(folder: Path) -> Task:
    """Task of a trial, read from `task.json` in the trial directory."""
    return _TASK.validate_json((folder / "task.json").read_text())


def write_report(folder: Path, report: RankReport) -> None:
    """Write a rank's report into the trial directory, the last action of a rank."""
    _replace(folder / f"rank_{report.rank}.json", report.model_dump_json(indent=1))


def write_model_summary(folder: Path, model_summary: ModelSummary) -> None:
    """Write the result of a model summary task (the summary of its model) into the trial directory."""
    _replace(folder / "model_summary.json", model_summary.model_dump_json(indent=1))


def write_rehearsal(folder: Path, report: RehearsalReport) -> None:
    """Write the result of a rehearsal (a trial on tensors without values) into the trial directory."""
    _replace(folder / "rehearsal.json", report.model_dump_json(indent=1))


class ProgressFile:
    """Progress file `progress.json` of a trial, which only rank 0 writes. Each write postpones the moment at which the
    agent ends the run for lack of progress."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / "progress.json" if rank == 0 else None
        self._written_at_s = 0.0

    def write(self, progress: Progress, throttle: bool = False) -> None:
        """Replace the progress file. If throttling applies, do nothing when the last write was a moment ago."""
        now = time.monotonic()
        if self._path is None or (throttle and now - self._written_at_s < _THROTTLE_S):
            return
        self._written_at_s = now
        _replace(self._path, progress.model_dump_json())

    @contextlib.contextmanager
    def refreshed(self, progress: Progress) -> Iterator[None]:
        """Context in which the progress file is written at once and then every few seconds, so that a long operation
        does not count as hanging. The trial's deadline still limits the operation."""
        over = threading.Event()

        def write_repeatedly() -> None:
            while not over.wait(_TICK_S):
                self.write(progress)

        self.write(progress)
        ticker = threading.Thread(target=write_repeatedly, name="progress", daemon=True)
        ticker.start()
        try:
            yield
        finally:
            over.set()
            ticker.join()


def _replace(path: Path, text: str) -> None:
    """Replace a file in one operation: a reader sees either the old content or the new one, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)
