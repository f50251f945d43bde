"""Helpers that are stopped (SIGSTOP) and stay so: they see no end and keep no promise, and nobody tells of it."""

from collections.abc import Collection

import psutil

from shardtune.workers.clock import now_s

_PATIENCE_S = 3.0
"""A whole host may be suspended and go on; what is stopped for so long beside a process that runs was meant."""


class Standstill:
    """Watches some processes, as often as it is asked."""

    def __init__(self, pids: Collection[int]) -> None:
        self._pids = pids
        self._since_s: float | None = None

    @property
    def has_lasted(self) -> bool:
        """One of them was stopped at each look for a while."""
        if not any(map(_is_stopped, self._pids)):
            self._since_s = None
            return False
        self._since_s = self._since_s or now_s()
        return now_s() - self._since_s > _PATIENCE_S


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False
