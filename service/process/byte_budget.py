"""Budget of bytes that a process holds in memory for its senders, so that none of them can use it up.

The rule is the dynamic threshold of shared-memory switches (Choudhury and Hahne, "Dynamic queue length thresholds for
shared-memory packet switches", 1998, with alpha = 1): a sender may hold as many bytes as are free. One busy sender gets
half, two get a third each, and some room always remains for the next one.
"""

from collections import Counter

PIECE_BYTES = 16 << 10
"""Maximum bytes of a response that are passed to the HTTP server at a time, and that it buffers for one client. Smaller
responses are not counted against the budget.
"""


class ByteBudget:
    """Budget of memory that senders' requests or responses occupy, in bytes. Used in the event loop's thread only."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._held: Counter[str] = Counter()

    def has_room(self, sender: str, size: int) -> bool:
        """Whether a sender may occupy `size` more bytes: afterwards, at least as much memory must be free as the sender
        occupies.
        """
        return self._held[sender] + size <= self._free - size

    def held(self, sender: str) -> int:
        """Bytes that a sender holds."""
        return self._held[sender]

    def take(self, sender: str, size: int) -> None:
        """Count bytes that a sender occupies from now on, even if they exceed the budget, since they are in memory
        already.
        """
        self._free -= size
        self._held[sender] += size

    def release(self, sender: str, size: int) -> None:
        """Count bytes of a sender as freed."""
        self._free += size
        self._held[sender] -= size
        if not self._held[sender]:
            del self._held[sender]
