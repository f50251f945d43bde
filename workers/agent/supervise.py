"""Supervision of one attempt's ranks: launch, watch, kill. `collect` turns the end of the ranks into a result."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.trials.progress import Progress
from shardtune.workers.clock import now_s
from shardtune.workers.launch import Launch
from shardtune.workers.launchers.base import Launcher, LostProcess, RankExit
from shardtune.workers.trial_dir import TrialDir

_POLL_S = 0.25
_SLOWER = 3
"""Factor by which later steps may be slower than the last reported step: time limits are extended until they allow for
it."""
_MOST = 10
"""Largest factor by which slow steps can extend a time limit."""

Cause = Literal["deadline", "no_progress", "host_lost", "node_lost", "interrupted"]


@dataclass(frozen=True)
class RunLimits:
    """Time limits of an attempt. If steps are slower than expected, the limits are extended, at most tenfold."""

    deadline_s: float
    """Deadline of the attempt, in seconds from the launch."""
    no_progress_s: float
    """Seconds without a change of the progress file after which the attempt is ended as hanging."""
    # A rank whose peer is gone can wait in a collective for as long as its timeout allows.
    peer_grace_s: float = 5.0
    """Seconds that the other ranks have to write their reports after one rank has failed; then they are killed."""


@dataclass(frozen=True)
class RanksEnd:
    """Record of how an attempt's ranks ended; none of them is alive any more."""

    exits: tuple[RankExit, ...]
    """Ranks that ended before the others were killed, in the order in which their ends were noticed."""
    cause: Cause | None
    """Reason why the agent killed the remaining ranks. None if all ranks ended by themselves, or if the others were
    killed because one rank had failed."""
    detail: str
    started_at_s: float
    """Time in seconds at which the ranks were launched, on the clock of `clock.now_s`."""
    elapsed_s: float
    conditions: Conditions = field(default_factory=Conditions)
    """Conditions (such as load of other programs and throttling) that each host observed during the launch."""


def supervise(
    launcher: Launcher,
    directory: TrialDir,
    launch: Launch,
    limits: RunLimits,
    interrupted: Callable[[], str | None],
) -> RanksEnd:
    """Launch the ranks and watch them until all have ended. On return, and after any exception, no rank is alive.

    `interrupted` is called four times a second; a text (the reason) ends the attempt.

    Raises:
        LaunchFailed: nothing was started.
        RanksAlive: ranks survived SIGKILL.
    """
    started_s = now_s()
    watch = _Watch(launcher, directory, launch.ranks, limits, started_s)
    try:
        launcher.launch(directory.path, launch)
        while (end := watch.end(interrupted())) is None:
            launcher.wait(_POLL_S)
        # Before the kill: ranks that the kill ends must not look like failures of their own.
        exits, elapsed_s = launcher.exits, now_s() - started_s
    finally:
        launcher.kill()
    end = _with_lost_node(end, exits, launch.ranks, launcher.lost)
    return RanksEnd(exits, end.cause, end.detail, started_s, elapsed_s, launcher.conditions())


@dataclass(frozen=True)
class _End:
    cause: Cause | None
    detail: str = ""


def _with_lost_node(end: _End, exits: Sequence[RankExit], ranks: int, lost: LostProcess | None) -> _End:
    """Return the recorded end of an attempt, or instead the loss of a host that explains it. That a host is lost may
    become known only after its ranks were killed."""
    # A lost host explains the deaths of its peers' ranks. It takes back no complete result, and does not replace an
    # interruption: an engine that ends a worker ends its hosts too.
    is_complete = len(exits) == ranks and all(exit.code == 0 for exit in exits)
    if lost is None or not lost.is_node or is_complete or end.cause == "interrupted":
        return end
    return _End("node_lost", lost.message)


class _Watch:
    """Check of everything that ends an attempt: exited ranks, lost hosts and exceeded time limits."""

    def __init__(self, launcher: Launcher, directory: TrialDir, ranks: int, limits: RunLimits, started_s: float):
        self._launcher = launcher
        self._directory = directory
        self._ranks = ranks
        self._limits = limits
        self._started_s = started_s
        self._stamp: int | None = None
        self._progressed_s = started_s
        self._failed_s: float | None = None
        self._deadline_s, self._no_progress_s = limits.deadline_s, limits.no_progress_s

    def end(self, interrupted: str | None) -> _End | None:
        """Reason why the attempt must be ended now; None while its ranks may continue."""
        all_ended = len(self._launcher.exits) == self._ranks
        # Ranks that ended themselves because the lease expired are no result; ranks that are done are one.
        if interrupted is not None and not (all_ended and all(exit.code == 0 for exit in self._launcher.exits)):
            return _End("interrupted", interrupted)
        if all_ended:
            return _End(None)
        if self._launcher.lost is not None:
            return _End("host_lost", self._launcher.lost.message)
        if self._is_grace_over():
            return _End(None)
        return self._exceeded_limit()

    def _is_grace_over(self) -> bool:
        if self._failed_s is None and any(exit.code != 0 for exit in self._launcher.exits):
            self._failed_s = time.monotonic()
        return self._failed_s is not None and time.monotonic() - self._failed_s > self._limits.peer_grace_s

    def _exceeded_limit(self) -> _End | None:
        """Time limit that has been exceeded, the deadline or the no-progress limit; None while neither has."""
        now = now_s()
        # The file's time only shows that it changed; this process's clock says when, since hosts share no clock.
        stamp = self._directory.progress_stamp()
        if stamp != self._stamp:
            self._stamp, self._progressed_s = stamp, now
            self._extend_limits(self._directory.progress(), now - self._started_s)
        if now - self._started_s > self._deadline_s:
            return _End("deadline", f"the run took longer than its deadline ({self._deadline_s:.0f} s)")
        if now - self._progressed_s > self._no_progress_s:
            return _End("no_progress", f"no rank made progress for {self._no_progress_s:.0f} s")
        return None

    def _extend_limits(self, progress: Progress | None, spent_s: float) -> None:
        """Extend the time limits so that the remaining steps may be as slow as the last reported one, with a reserve.
        The limits never fall below the original ones."""
        if progress is None or progress.step_s is None or progress.steps_left is None:
            return
        slow_s, limits = _SLOWER * progress.step_s, self._limits
        self._deadline_s = min(
            max(limits.deadline_s, spent_s + progress.steps_left * slow_s), _MOST * limits.deadline_s
        )
        self._no_progress_s = min(max(limits.no_progress_s, slow_s), _MOST * limits.no_progress_s)
