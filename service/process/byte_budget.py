"""Budget of bytes that a process holds in memory for its senders, so that none of them can use it up.

The rule is the dynamic threshold of shared-memory switches (Choudhury and Hahne, "Dynamic queue length thresholds for
shared-memory packet switches", 1998, with alpha = 1): a sender may hold as many bytes as are free. One busy sender gets
half, two get a third each, and some room always remains for the next one.
"""

from collections import Counter

PIECE_BYTES = 16 << 10
"""Maximum number of bytes of a response that are passed to the HTTP server at a time, and so the number that it
buffers for one client. Responses no larger than this do not count against the memory budget.
"""


class ByteBudget:
    """Budget in bytes for the memory that the requests or the responses of all senders occupy. Used in the event
    loop's thread only.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._held: Counter[str] = Counter()

    def has_room(self, sender: str, size: int) -> bool:
        """Whether a sender may occupy `size` more bytes. It may if afterwards at least as much of the budget is free
        as the sender then occupies.
        """
        return self._held[sender] + size <= self._free - size

    def held(self, sender: str) -> int:
        """Bytes that a sender holds."""
        return self._held[sender]

    def take(self, sender: str, size: int) -> None:
        """Count bytes that a sender occupies from now on. They count even if they exceed the budget, because they are
        in memory already.
        """
        self._free -= size
        self._held[sender] += size

    def release(self, sender: str, size: int) -> None:
        """Count bytes of memory that a sender occupied as free again."""
        self._free += size
        self._held[sender] -= size
        if not self._held[sender]:
            del self._held[sender]
