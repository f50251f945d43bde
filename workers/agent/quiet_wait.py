"""Wait before a run until other programs leave the machine, within the time that the lease allows.

The heartbeat thread goes on meanwhile and sends the wait as the run's progress.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from shardtune.api_schemas.machines.conditions import ProgramLoad, program_names
from shardtune.api_schemas.trials.leases import QuietWait
from shardtune.api_schemas.trials.progress import Progress
from shardtune.workers.clock import now_s
from shardtune.workers.machine.host_load import ProcessTimes, busy_on

SAMPLE_S = 1.0
"""Seconds over which the load of other programs is averaged."""
QUIET_S = 5.0
"""Seconds for which a machine that was busy must stay quiet before it counts as quiet, so that a pause between two
bursts of load does not count."""
_POLL_S = 0.1

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Load:
    """Load of other programs on this host, averaged over some seconds."""

    foreign_cpu_cores: float
    programs: tuple[ProgramLoad, ...] = ()

    def describe(self) -> str:
        """Description of the load for people: the number of busy cores and the names of the programs."""
        named = f" ({program_names(self.programs, self.foreign_cpu_cores)})" if self.programs else ""
        return f"other programs keep {self.foreign_cpu_cores:.1f} CPU cores busy{named}"


def sample(duration_s: float, give_up: Callable[[], bool]) -> Load:
    """Measure the load on this process's cores for some seconds, while no rank runs. The measurement ends early if
    `give_up` becomes true."""
    cores = os.sched_getaffinity(0)
    before, busy_s, started_s = ProcessTimes.now(), busy_on(cores), now_s()
    while (left_s := started_s + duration_s - now_s()) > 0 and not give_up():
        time.sleep(min(_POLL_S, left_s))
    foreign = max(0.0, busy_on(cores) - busy_s) / max(now_s() - started_s, 1e-9)
    return Load(round(foreign, 2), before.until(ProcessTimes.now(), cores))


class Waiter:
    """Wait of one attempt until other programs leave the machine quiet. The heartbeat thread reads the wait's progress
    and reports it to the service."""

    def __init__(
        self,
        order: QuietWait | None,
        measure: Callable[[float, Callable[[], bool]], Load] = sample,
        clock: Callable[[], float] = now_s,
    ) -> None:
        """Prepare the wait. If there is no `order` to wait, it ends at once. `measure` returns the load over a number
        of seconds."""
        self._order = order
        self._measure, self._clock = measure, clock
        self._progress: Progress | None = None
        self.waited_s: float | None = order.waited_s or None if order is not None else None
        """Seconds for which the attempts of this run have waited so far; None if they did not wait."""

    def with_wait(self, progress: Progress | None) -> Progress | None:
        """Return the progress to report. During the wait it is that of the wait; afterwards it is the given progress of
        the run, with the seconds waited."""
        shown = self._progress or progress
        if shown is None or self.waited_s is None:
            return shown
        return shown.model_copy(update={"waited_s": round(self.waited_s, 1)})

    def wait(self, give_up: Callable[[], bool]) -> None:
        """Wait until the machine is quiet, the time allowed for waiting is over, or `give_up` becomes true."""
        order = self._order
        if order is None or (load := self._measure(SAMPLE_S, give_up)).foreign_cpu_cores <= order.most_foreign_cores:
            return
        started_s = self._clock()
        quiet_since_s: float | None = None
        while not give_up():
            now = self._clock()
            self.waited_s = order.waited_s + min(now - started_s, order.most_s)
            if load.foreign_cpu_cores > order.most_foreign_cores:
                quiet_since_s = None
            elif quiet_since_s is None:
                quiet_since_s = now
            if quiet_since_s is not None and now - quiet_since_s >= QUIET_S:
                log.info("the machine is quiet after %.0f s", now - started_s)
                break
            if now - started_s >= order.most_s:
                log.warning("the wait for a quiet machine is over: %s", load.describe())
                break
            if self._progress is None:
                log.info("waiting until the machine is quiet, %.0f s at most: %s", order.most_s, load.describe())
            self._progress = Progress(
                phase="waiting_for_quiet", foreign_cpu_cores=load.foreign_cpu_cores, foreign_programs=load.programs
            )
            load = self._measure(SAMPLE_S, give_up)
        self._progress = None
