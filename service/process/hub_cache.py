"""Cache of models read from the hub, and the limit on how many are read at a time, of one service process."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shardtune.api_schemas.training.hub_source import HubSource
from shardtune.api_schemas.training.models import ModelSpec

_MOST_MODELS = 128
_KEPT_S = 300.0
"""Seconds for which the commit that a branch or tag of a hub repository points to is remembered; a commit itself never
changes.
"""
_MOST_READS = 4
"""Maximum number of threads that wait for the hub at a time; a hub that never answers must not hold all of them."""


class HubCache:
    """Cache of models read from the model hub, by repository and the revision that was requested."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._reads = threading.BoundedSemaphore(_MOST_READS)
        self._models: dict[HubSource, tuple[float, ModelSpec]] = {}

    def get(self, source: HubSource) -> ModelSpec | None:
        """Return the cached model of a repository and revision; None if it was never read, or too long ago."""
        with self._guard:
            read_at, model = self._models.get(source, (0.0, None))
        if model is None or (not source.is_pinned and self._clock() - read_at > _KEPT_S):
            return None
        return model

    def put(self, source: HubSource, model: ModelSpec) -> None:
        """Cache a model under the revision (such as a branch) that was requested, and under its commit."""
        with self._guard:
            for name in (source, model.hub or source):
                self._models.pop(name, None)
                self._models[name] = (self._clock(), model)
            while len(self._models) > _MOST_MODELS:
                self._models.pop(next(iter(self._models)))

    @contextmanager
    def read_slot(self, wait_s: float) -> Iterator[bool]:
        """Hold one of the slots for reading the hub; yields False if no slot became free within `wait_s`."""
        is_free = self._reads.acquire(timeout=wait_s)
        try:
            yield is_free
        finally:
            if is_free:
                self._reads.release()
