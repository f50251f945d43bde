"""How often recommendations are given out: counted in memory, added to the database every few seconds.

Approximate by design: a process that is killed loses the counts of its last seconds, and a GET writes nothing.
"""

import threading
from collections import Counter
from collections.abc import Mapping


class Uses:
    """What one process has given out since it last wrote."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, project_id: str, target_key: str) -> None:
        with self._guard:
            self._counts[project_id, target_key] += 1

    def take(self) -> Mapping[tuple[str, str], int]:
        """The counts since the last call."""
        with self._guard:
            taken, self._counts = self._counts, Counter()
        return taken
