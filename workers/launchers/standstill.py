"""Detection of processes that stay stopped (SIGSTOP): they neither end nor fail, and no event reports them."""

from collections.abc import Mapping

import psutil

from shardtune.workers.clock import now_s

PATIENCE_S = 3.0
"""Seconds for which a process may be stopped before it counts as lost. Shorter stops are harmless: if the whole host is
suspended and resumed, for example, the watcher was stopped as well."""
_CHECKS = 6
"""Maximum number of checks in the seconds for which a process may be stopped; each check takes some time from the
ranks' processors."""


class Standstill:
    """Detector of stopped processes (SIGSTOP). It may be called often, and checks the processes only now and then."""

    def __init__(self, names: Mapping[int, str] = {}, patience_s: float = PATIENCE_S) -> None:
        """Prepare the detector; `names` describes each process by pid."""
        self._names, self._patience_s = names, patience_s
        self._checked_s = 0.0
        self._since_s: float | None = None

    def stopped_process(self) -> str | None:
        """Name of a process that was stopped at every check for longer than the allowed seconds; None if there is
        none."""
        now = now_s()
        if now - self._checked_s < self._patience_s / _CHECKS:
            return None
        self._checked_s = now
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
