"""The rank's side of a trial directory: reads the task, writes progress and its report."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter

from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.leases import Task
from shardtune.api_schemas.trials.measurements import Progress, RankReport

_TASK: TypeAdapter[Task] = TypeAdapter(Task)
_TICK_S = 5.0
_THROTTLE_S = 0.5
"""At most so often within timed windows: a write is small, but not nothing."""


def read_task(folder: Path) -> Task:
    """The content of `task.json`."""
    return _TASK.validate_json((folder / "task.json").read_text())


def write_report(folder: Path, report: RankReport) -> None:
    """The last act of a rank."""
    _replace(folder / f"rank_{report.rank}.json", report.model_dump_json(indent=1))


def write_model_summary(folder: Path, model_summary: ModelSummary) -> None:
    """The result of a profile task."""
    _replace(folder / "model_summary.json", model_summary.model_dump_json(indent=1))


class ProgressFile:
    """`progress.json`, written by rank 0 only; its modification time is what the agent's no-progress clock reads."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / "progress.json" if rank == 0 else None
        self._written = 0.0

    def write(self, progress: Progress, throttle: bool = False) -> None:
        """Replace the file, unless throttled and written a moment ago."""
        now = time.monotonic()
        if self._path is None or (throttle and now - self._written < _THROTTLE_S):
            return
        self._written = now
        _replace(self._path, progress.model_dump_json())

    @contextlib.contextmanager
    def ticking(self, progress: Progress) -> Iterator[None]:
        """Write it now and every few seconds: what takes long by itself is no standstill. The deadline bounds it."""
        over = threading.Event()

        def tell() -> None:
            while not over.wait(_TICK_S):
                self.write(progress)

        self.write(progress)
        ticker = threading.Thread(target=tell, name="progress", daemon=True)
        ticker.start()
        try:
            yield
        finally:
            over.set()
            ticker.join()


def _replace(path: Path, text: str) -> None:
    """Write so that a reader sees the old file or the new one, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)
