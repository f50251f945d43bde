"""Clock that neither jumps nor stops: seconds since boot, including time in which the machine was suspended."""

import time


def now_s() -> float:
    """Seconds since boot on CLOCK_BOOTTIME, including time in which the machine was suspended."""
    # A monotonic clock would stand still while a laptop or a VM sleeps, and leases expire meanwhile.
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseClock:
    """Clock that tells the holder of a lease when the lease ends. The clocks of holder and service need not agree.

    The holder counts the lease from the moment at which it *sent* the last request that was answered. The service
    counts from a later moment, before its answer, so that its lease never ends before the holder's.
    """

    def __init__(self, sent_at_s: float, lease_s: float):
        self._ends_s = sent_at_s + lease_s
        self._lease_s = lease_s

    def renew(self, sent_at_s: float, lease_s: float) -> None:
        """Renew the lease. The request was sent at `sent_at_s`, and its answer grants a lease of `lease_s` seconds."""
        self._ends_s = sent_at_s + lease_s
        self._lease_s = lease_s

    def must_end(self) -> bool:
        """Whether ranks have to be killed now so that they have ended before the lease ends."""
        return now_s() >= self._ends_s - self._margin_s

    @property
    def ranks_end_s(self) -> float:
        """Time by which ranks must end themselves. It is later than the time at which the lease's holder should have
        killed them, and earlier than the end of the lease."""
        return self._ends_s - self._margin_s / 2

    @property
    def _margin_s(self) -> float:
        return min(3.0, self._lease_s / 4)
