"""Count how often recommendations are given out: in memory, written to the database every few seconds.

Approximate by design: a process that is killed loses the counts of its last seconds, and a GET writes nothing.
"""

import threading
from collections import Counter
from collections.abc import Mapping


class UsageCounts:
    """Number of times that this process has returned each recommendation in a response since it last wrote these
    counts to the database.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, project_id: str, target_key: str) -> None:
        with self._guard:
            self._counts[project_id, target_key] += 1

    def take(self) -> Mapping[tuple[str, str], int]:
        """Return the counts since this function was last called, and begin to count from zero."""
        with self._guard:
            # Swapped under the lock: a request that counts meanwhile adds to the new counter.
            counts, self._counts = self._counts, Counter()
        return counts
