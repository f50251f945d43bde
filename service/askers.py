"""One asker per study and process: sampling twice from the same history would only be thrown away.

Between processes the study's version decides; this lock saves work, it does not protect anything.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tuner.calibration import Calibrations
from tuner.space import Space

_PATIENCE_S = 10.0
_MOST_SPACES = 64


class Askers:
    """A lock per study, and what is dear to make: the spaces, which never change once the profile is known, and the
    calibrations, which change with every measured run."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._spaces: dict[str, Space] = {}
        self._calibrations: dict[str, tuple[str, Calibrations]] = {}

    @contextmanager
    def turn(self, study_id: str) -> Iterator[bool]:
        """Wait for the study's turn; False when it did not come, and the worker should ask again."""
        with self._guard:
            lock = self._locks.setdefault(study_id, threading.Lock())
        got = lock.acquire(timeout=_PATIENCE_S)
        try:
            yield got
        finally:
            if got:
                lock.release()

    def space(self, study_id: str, build: Callable[[], Space]) -> Space:
        """The study's space, built on first use."""
        space = self._spaces.get(study_id)
        if space is None:
            space = build()
            with self._guard:
                while len(self._spaces) >= _MOST_SPACES:
                    self._spaces.pop(next(iter(self._spaces)))
                self._spaces[study_id] = space
        return space

    def calibrations(self, fingerprint_key: str, state: str, learn: Callable[[], Calibrations]) -> Calibrations:
        """Of a fingerprint, learnt anew whenever what is stored about it has changed."""
        known = self._calibrations.get(fingerprint_key)
        if known is None or known[0] != state:
            known = (state, learn())
            with self._guard:
                while len(self._calibrations) >= _MOST_SPACES:
                    self._calibrations.pop(next(iter(self._calibrations)))
                self._calibrations[fingerprint_key] = known
        return known[1]
