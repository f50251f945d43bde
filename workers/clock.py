"""Time that neither jumps nor stops: seconds since boot, including time the machine was suspended."""

import time


def now_s() -> float:
    """Seconds on CLOCK_BOOTTIME. A monotonic clock would stand still while a laptop or a VM sleeps, and leases end meanwhile."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseClock:
    """When the lease ends, as far as this side can know.

    It counts from the *sending* of the last request that was answered: the service counts from a moment between
    sending and answer, so its lease never ends before ours.
    """

    def __init__(self, sent_at_s: float, lease_s: float):
        self._ends_s = sent_at_s + lease_s
        self._lease_s = lease_s

    def renewed(self, sent_at_s: float, lease_s: float) -> None:
        """A request sent then was answered with a lease of that length."""
        self._ends_s = sent_at_s + lease_s
        self._lease_s = lease_s

    def must_end(self) -> bool:
        """True when ranks have to be killed now to be gone before the lease ends."""
        return now_s() >= self._ends_s - self._margin_s

    @property
    def ranks_end_s(self) -> float:
        """When ranks that nobody has killed must end themselves: after we should have, and before the lease ends."""
        return self._ends_s - self._margin_s / 2

    @property
    def _margin_s(self) -> float:
        return min(3.0, self._lease_s / 4)
