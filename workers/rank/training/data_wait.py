"""How long a script waits for its data: the time inside `next()` of every torch DataLoader that it iterates.

Whatever wraps one (Accelerate, Trainer, Lightning) ends in `DataLoader.__iter__`, so that is where it is counted.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from shardtune.workers.rank.device import Device


class DataWait:
    """What has been waited for so far, by a script that trains on this device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.seconds: float | None = None
        """None until a DataLoader was asked for a batch."""

    def add(self, seconds: float) -> None:
        """Count a wait of the host; a device that still computes has not waited."""
        self.seconds = (self.seconds or 0.0) + (0.0 if self._device.is_busy() else seconds)


class _TimedBatches:
    """A loader's iterator; everything but the clock is its own."""

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
def counted(wait: DataWait) -> Iterator[None]:
    """Count the waits of this process meanwhile."""
    plain = DataLoader.__iter__

    def timed(loader: "DataLoader[Any]") -> Any:
        return _TimedBatches(plain(loader), wait)

    DataLoader.__iter__ = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        DataLoader.__iter__ = plain  # type: ignore[method-assign]
