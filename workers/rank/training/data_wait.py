"""Time that a user's script waits for data: the seconds inside `next()` of every torch DataLoader over which the script
iterates.

Every wrapper (Accelerate, Trainer, Lightning) ends in `DataLoader.__iter__`, so the time is counted there.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from shardtune.workers.rank.device import Device


class DataWait:
    """Total time for which a user's script waited for data while its device had nothing to compute."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.seconds: float | None = None
        """Seconds waited for data so far; None until a DataLoader was asked for a batch."""

    def add(self, seconds: float) -> None:
        """Add a wait of the host for data. It counts as 0 s if the device is still computing and so does not wait."""
        self.seconds = (self.seconds or 0.0) + (0.0 if self._device.is_busy() else seconds)


class _TimedBatches:
    """Iterator of a DataLoader that measures how long each `next` takes; all other attributes are those of the original
    iterator."""

    def __init__(self, batches: Iterator[Any], wait: DataWait) -> None:
        self._batches, self._wait = batches, wait

    def __iter__(self) -> "_TimedBatches":
        return self

    def __next__(self) -> Any:
        begin = time.perf_counter()
        try:
            return next(self._batches)
        finally:
            self._wait.add(time.perf_counter() - begin)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


@contextlib.contextmanager
def count_waits(wait: DataWait) -> Iterator[None]:
    """Context in which this process's waits for DataLoaders are counted."""
    plain = DataLoader.__iter__

    def timed(loader: "DataLoader[Any]") -> Any:
        return _TimedBatches(plain(loader), wait)

    # Patched on the class: scripts and frameworks make their loaders themselves, out of our reach.
    DataLoader.__iter__ = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        DataLoader.__iter__ = plain  # type: ignore[method-assign]
