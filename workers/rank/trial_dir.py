"""Trial directory as a rank uses it: reads the task, writes progress and the rank's report."""

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
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
    """Progress file `progress.json` of a trial, which only rank 0 writes. Each change of its time postpones the moment
    at which the agent ends the run for lack of progress."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._path, self._is_writer = folder / "progress.json", rank == 0
        self._written_at_s = 0.0

    def write(self, progress: Progress, throttle: bool = False) -> None:
        """Replace the progress file. If throttling applies, do nothing when the last write was a moment ago."""
        now = time.monotonic()
        if not self._is_writer or (throttle and now - self._written_at_s < _THROTTLE_S):
            return
        self._written_at_s = now
        _replace(self._path, progress.model_dump_json())

    @contextlib.contextmanager
    def refreshed(self, progress: Progress) -> Iterator[None]:
        """Context in which the progress file is written at once and then every few seconds, so that a long operation
        does not count as hanging. The trial's deadline still limits the operation."""
        self.write(progress)
        with _repeated(lambda: self.write(progress)):
            yield

    @contextlib.contextmanager
    def refreshed_by_work(self, progress: Progress, has_worked: Callable[[], bool]) -> Iterator[None]:
        """Context in which the progress file is renewed every few seconds, as long as `has_worked` says that this rank
        has worked since the last call. Each rank on rank 0's host renews the file: rank 0 may wait for another rank."""

        def renew_if_working() -> None:
            if not has_worked():
                return
            self.write(progress)
            if not self._is_writer:
                # Before rank 0's first write there is no file; the launch itself then counts as progress.
                with contextlib.suppress(OSError):
                    os.utime(self._path)

        self.write(progress)
        with _repeated(renew_if_working):
            yield


@contextlib.contextmanager
def _repeated(act: Callable[[], None]) -> Iterator[None]:
    """Context in which a thread calls a function every few seconds."""
    over = threading.Event()

    def act_repeatedly() -> None:
        while not over.wait(_TICK_S):
            try:
                act()
            # Such as a full disk, or a script that has as many files open as it may: later calls may succeed.
            except OSError:
                traceback.print_exc()

    ticker = threading.Thread(target=act_repeatedly, name="progress", daemon=True)
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
