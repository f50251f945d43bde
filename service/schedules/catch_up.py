"""Which of the ticks that are due run, and which were missed: pure rules, documented in docs/explanation/retuning.md."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from shardtune.api_schemas.retuning.schedules import CatchUp, ScheduleSpec


@dataclass(frozen=True)
class Due:
    """A tick to be accounted for."""

    at: datetime
    runs: bool
    stands_for: int = 1
    """Ticks it accounts for: itself, and missed ones before it."""


def account(ticks: Sequence[datetime], now: datetime, spec: ScheduleSpec) -> list[Due]:
    """What to do about ticks that are due, oldest first; every one of them is accounted for in exactly one result.

    On time is what is noticed within the grace period: it runs. Of the missed ones, `none` runs none, `one` lets the next
    tick that is on time stand for them (or, where there is none, the newest of them), and `all` runs the newest
    `catch_up_limit` of them.
    """
    on_time = [at for at in ticks if (now - at).total_seconds() <= spec.misfire_grace_s]
    missed = ticks[: len(ticks) - len(on_time)]
    timely = [Due(at, runs=True) for at in on_time]
    if not missed:
        return timely
    match spec.catch_up:
        case CatchUp.NONE:
            return [Due(missed[-1], runs=False, stands_for=len(missed)), *timely]
        case CatchUp.ONE if timely:
            return [Due(timely[0].at, runs=True, stands_for=len(missed) + 1), *timely[1:]]
        case CatchUp.ONE:
            return [Due(missed[-1], runs=True, stands_for=len(missed))]
        case CatchUp.ALL:
            kept = missed[-spec.catch_up_limit :]
            lost = missed[: len(missed) - len(kept)]
            given_up = [Due(lost[-1], runs=False, stands_for=len(lost))] if lost else []
            return [*given_up, *(Due(at, runs=True) for at in kept), *timely]
        case _:
            assert_never(spec.catch_up)
