"""Cache of models read from the hub, and the limit on how many are read at a time, of one service process."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shardtune.api_schemas.training.hub_source import HubSource
from shardtune.api_schemas.training.models import ModelSpec

_MOST_MODELS = 128
_KEPT_S = 300.0
"""Seconds for which the service remembers to which commit a branch or tag of a hub repository points. The content of
a commit itself never changes.
"""
_MOST_READS = 4
"""Maximum number of threads that wait for the hub at the same time, so that a hub that never answers does not block
all threads of the service.
"""


class HubCache:
    """Cache of models read from the model hub, by repository and the revision that was requested."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._reads = threading.BoundedSemaphore(_MOST_READS)
        self._models: dict[HubSource, tuple[float, ModelSpec]] = {}

    def get(self, source: HubSource) -> ModelSpec | None:
        """Return the cached model of a repository and revision; None if it was never read, or if that was too long
        ago.
        """
        with self._guard:
            read_at, model = self._models.get(source, (0.0, None))
        if model is None or (not source.is_pinned and self._clock() - read_at > _KEPT_S):
            return None
        return model

    def put(self, source: HubSource, model: ModelSpec) -> None:
        """Cache a model under the revision that was requested, such as a branch, and also under the commit that was
        read.
        """
        with self._guard:
            for name in (source, model.hub or source):
                self._models.pop(name, None)
                self._models[name] = (self._clock(), model)
            while len(self._models) > _MOST_MODELS:
                self._models.pop(next(iter(self._models)))

    @contextmanager
    def read_slot(self, wait_s: float) -> Iterator[bool]:
        """Reserve one of the slots for reading the hub during a `with` block; yields False if none became free within
        `wait_s` seconds.
        """
        is_free = self._reads.acquire(timeout=wait_s)
        try:
            yield is_free
        finally:
            if is_free:
                self._reads.release()
