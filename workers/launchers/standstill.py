"""Processes that are stopped (SIGSTOP) and stay so: they see no end and keep no promise, and nobody tells of it."""

from collections.abc import Mapping

import psutil

from shardtune.workers.clock import now_s

PATIENCE_S = 3.0
"""A whole host may be suspended and go on; what is stopped for so long beside a process that runs was meant."""
_LOOKS = 6
"""Within that time at most: looking costs the ranks' processors something."""


class Standstill:
    """Watches some processes, as often as it is asked."""

    def __init__(self, names: Mapping[int, str] = {}, patience_s: float = PATIENCE_S) -> None:
        """`names`: what each process is, in words."""
        self._names, self._patience_s = names, patience_s
        self._looked_s = 0.0
        self._since_s: float | None = None

    def who(self) -> str | None:
        """Which of them was stopped at each look for a while."""
        now = now_s()
        if now - self._looked_s < self._patience_s / _LOOKS:
            return None
        self._looked_s = now
        stopped = next((name for pid, name in self._names.items() if _is_stopped(pid)), None)
        if stopped is None:
            self._since_s = None
            return None
        self._since_s = self._since_s or now
        return stopped if now - self._since_s > self._patience_s else None


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False
