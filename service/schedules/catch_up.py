"""Decide which due ticks of a schedule run and which count as missed. Pure functions; the documentation page on
retuning describes the rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from shardtune.api_schemas.retuning.schedules import CatchUp, ScheduleSpec


@dataclass(frozen=True)
class DueTick:
    """Tick of a schedule (moment at which it is due), and the decision whether the tick runs."""

    at: datetime
    runs: bool
    merged_ticks: int = 1
    """Number of ticks that this tick stands for: itself, and missed ticks before it that were merged into it."""


def account_for_ticks(ticks: Sequence[datetime], now: datetime, spec: ScheduleSpec) -> list[DueTick]:
    """Decide about all due ticks of a schedule, oldest first; each tick is covered by exactly one result.

    A tick noticed within the grace period is on time and runs. The schedule's `catch_up` decides about missed ticks.
    With `none`, no missed tick runs. With `one`, missed ticks are merged into the next on-time tick, or, without one,
    the newest missed tick runs. With `all`, the newest `catch_up_limit` missed ticks run.
    """
    on_time = [at for at in ticks if (now - at).total_seconds() <= spec.misfire_grace_s]
    missed = ticks[: len(ticks) - len(on_time)]
    on_time_due = [DueTick(at, runs=True) for at in on_time]
    if not missed:
        return on_time_due
    match spec.catch_up:
        case CatchUp.NONE:
            return [DueTick(missed[-1], runs=False, merged_ticks=len(missed)), *on_time_due]
        case CatchUp.MERGED if on_time_due:
            return [DueTick(on_time_due[0].at, runs=True, merged_ticks=len(missed) + 1), *on_time_due[1:]]
        case CatchUp.MERGED:
            return [DueTick(missed[-1], runs=True, merged_ticks=len(missed))]
        case CatchUp.ALL:
            # A limit, so that a service that was down for weeks does not start hundreds of retunes.
            caught_up = missed[-spec.catch_up_limit :]
            dropped = missed[: len(missed) - len(caught_up)]
            dropped_due = [DueTick(dropped[-1], runs=False, merged_ticks=len(dropped))] if dropped else []
            return [*dropped_due, *(DueTick(at, runs=True) for at in caught_up), *on_time_due]
        case _:
            assert_never(spec.catch_up)
