"""Count the requests of each project in the present minute, within one service process."""

import threading
from datetime import datetime

_MINUTE_S = 60


class RequestRates:
    """Number of requests of each project in the present minute. Safe to use from any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._minute = 0
        self._counts: dict[str, int] = {}

    def count(self, project_id: str, limit: int, now: datetime) -> float | None:
        """Count a request of a project. If the request exceeds the limit, returns the seconds until the next minute
        begins, else None.
        """
        seconds = now.timestamp()
        minute = int(seconds // _MINUTE_S)
        with self._guard:
            # All counts start anew with the minute, so nothing of earlier senders is kept.
            if minute != self._minute:
                self._minute, self._counts = minute, {}
            self._counts[project_id] = self._counts.get(project_id, 0) + 1
            is_over = self._counts[project_id] > limit
        return (minute + 1) * _MINUTE_S - seconds if is_over else None
