"""Run the ranks of one attempt to their end: launch, watch, kill. What the end means is `collect`'s business."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.trials.measurements import Progress
from shardtune.workers.clock import now_s
from shardtune.workers.launch import Launch
from shardtune.workers.launchers.base import Launcher, Lost, RankExit
from shardtune.workers.trial_dir import TrialDir

_POLL_S = 0.25
_SLOWER = 3
"""Than the step before it a step may be."""
_MOST = 10
"""Times a limit that slow steps may have."""

Cause = Literal["deadline", "no_progress", "host_lost", "node_lost", "interrupted"]


@dataclass(frozen=True)
class RunLimits:
    """How long an attempt may take. Steps that turn out slower than that foresaw get their time, up to ten times the limit."""

    deadline_s: float
    """From the launch."""
    no_progress_s: float
    """Without a change of the progress file."""
    peer_grace_s: float = 5.0
    """How long the other ranks may take to write their own report once one has failed; then they are killed,
    because a rank whose peer is gone can wait in a collective for as long as its timeout allows."""


@dataclass(frozen=True)
class Ended:
    """How the ranks ended. Nothing of them is alive any more."""

    exits: tuple[RankExit, ...]
    """Ranks that ended before we killed the rest, in the order they were seen."""
    cause: Cause | None
    """Why we ended the rest; None when all ended, or after one had failed."""
    detail: str
    started_at_s: float
    """On `clock.now_s`."""
    elapsed_s: float
    seen: Conditions = field(default_factory=Conditions)
    """What each host saw meanwhile."""


def supervise(
    launcher: Launcher,
    directory: TrialDir,
    launch: Launch,
    limits: RunLimits,
    interrupted: Callable[[], str | None],
) -> Ended:
    """Launch and see it through; on every way out, exceptions included, no rank is alive.

    `interrupted` is asked four times a second; a text (the reason) ends the attempt.

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
        # Before the kill: what we end ourselves must not look like a failure of its own.
        exits, elapsed_s = launcher.exits, now_s() - started_s
    finally:
        launcher.kill()
    end = _with_lost_node(end, exits, launch.ranks, launcher.lost)
    return Ended(exits, end.cause, end.detail, started_s, elapsed_s, launcher.seen())


@dataclass(frozen=True)
class _End:
    cause: Cause | None
    detail: str = ""


def _with_lost_node(end: _End, exits: Sequence[RankExit], ranks: int, lost: Lost | None) -> _End:
    """A host that died explains what its peers' ranks died of, and may be known only now. It neither takes back a result
    that is complete, nor is it why a worker stops that was told to: whoever ends a worker ends its hosts too.
    """
    is_complete = len(exits) == ranks and all(exit.code == 0 for exit in exits)
    if lost is None or not lost.is_node or is_complete or end.cause == "interrupted":
        return end
    return _End("node_lost", lost.message)


class _Watch:
    """Decides when an attempt is over."""

    def __init__(self, launcher: Launcher, directory: TrialDir, ranks: int, limits: RunLimits, started_s: float):
        self._launcher = launcher
        self._directory = directory
        self._ranks = ranks
        self._limits = limits
        self._started_s = started_s
        self._stamp: int | None = None
        self._moved_s = started_s
        self._failed_s: float | None = None
        self._deadline_s, self._no_progress_s = limits.deadline_s, limits.no_progress_s

    def end(self, interrupted: str | None) -> _End | None:
        """None while the ranks may go on."""
        all_ended = len(self._launcher.exits) == self._ranks
        # Ranks that have ended themselves because the lease ran out are no result; those that are done are one.
        if interrupted is not None and not (all_ended and all(exit.code == 0 for exit in self._launcher.exits)):
            return _End("interrupted", interrupted)
        if all_ended:
            return _End(None)
        if self._launcher.lost is not None:
            return _End("host_lost", self._launcher.lost.message)
        if self._peers_had_their_time():
            return _End(None)
        return self._too_slow()

    def _peers_had_their_time(self) -> bool:
        if self._failed_s is None and any(exit.code != 0 for exit in self._launcher.exits):
            self._failed_s = time.monotonic()
        return self._failed_s is not None and time.monotonic() - self._failed_s > self._limits.peer_grace_s

    def _too_slow(self) -> _End | None:
        """The hard deadline, and the no-progress limit: the file's time only says *that* it changed, our clock says when."""
        now = now_s()
        stamp = self._directory.progress_stamp()
        if stamp != self._stamp:
            self._stamp, self._moved_s = stamp, now
            self._follow(self._directory.progress(), now - self._started_s)
        if now - self._started_s > self._deadline_s:
            return _End("deadline", f"the run took longer than its deadline ({self._deadline_s:.0f} s)")
        if now - self._moved_s > self._no_progress_s:
            return _End("no_progress", f"no rank made progress for {self._no_progress_s:.0f} s")
        return None

    def _follow(self, progress: Progress | None, spent_s: float) -> None:
        """Limits by the last step that was seen; the given ones where it says less, or nothing yet."""
        if progress is None or progress.step_s is None or progress.steps_left is None:
            return
        slow_s, given = _SLOWER * progress.step_s, self._limits
        self._deadline_s = min(max(given.deadline_s, spent_s + progress.steps_left * slow_s), _MOST * given.deadline_s)
        self._no_progress_s = min(max(given.no_progress_s, slow_s), _MOST * given.no_progress_s)
