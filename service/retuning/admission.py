"""Whether a queued retune may start now: windows, the day's money, how many run, and what it is worth."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas import times
from shardtune.api_schemas.retuning.retunes import RetuneCause
from shardtune.api_schemas.retuning.schedules import ScheduleSpec
from shardtune.db.queries import retunes, schedules
from shardtune.db.tables.retunes import RetuneRow
from shardtune.service.access import retune_budget
from shardtune.service.process.context import Context
from shardtune.service.retuning import cost_benefit
from shardtune.service.workers import registry


@dataclass(frozen=True)
class Later:
    """It waits."""

    reason: str
    holds_up: str = ""
    """Nothing less used starts before it: of a project by its id, of the `fleet` where a window of all is shut, or nothing.
    What one project has to wait for is no reason to hold up another."""


@dataclass(frozen=True)
class Never:
    """It is skipped."""

    reason: str


@dataclass(frozen=True)
class Admitted:
    """It may start."""


Admission = Admitted | Later | Never


def decide(context: Context, session: Session, row: RetuneRow) -> Admission:
    """Whether a retune may start. The caller holds the money (`retune_money.hold`)."""
    spec = schedule_of(session, row)
    if row.cause != RetuneCause.MANUAL:
        reason = cost_benefit.why_not(
            retune_budget.likely_cost(session, row), row.planned_gpu_seconds, spec.likely_gain if spec else None
        )
        if reason is not None:
            return Never(reason)
    return _closed(context, session, row, spec, context.now()) or _affordable(context, session, row)


def schedule_of(session: Session, row: RetuneRow) -> ScheduleSpec | None:
    """What the schedule says that asked for a retune."""
    found = schedules.get(session, row.schedule_id) if row.schedule_id is not None else None
    return None if found is None else found.spec


def _closed(
    context: Context, session: Session, row: RetuneRow, spec: ScheduleSpec | None, now: datetime
) -> Later | None:
    policy, settings = retune_budget.policy_of(session, row.project_id), context.settings
    rules = [
        ("the fleet", settings.retune_windows, settings.retune_timezone, "fleet"),
        (f"project {row.project_id}", policy.windows, policy.timezone, row.project_id),
    ]
    if spec is not None:
        rules.append(("its schedule", spec.windows, spec.timezone, ""))
    for whose, windows, zone, holds_up in rules:
        if not times.is_open(windows, zone, now):
            return Later(f"waits for a window of {whose}: {', '.join(windows)} ({zone})", holds_up)
    return None


def _affordable(context: Context, session: Session, row: RetuneRow) -> Admission:
    running = retunes.running(session)
    mine = [other for other in running if other.project_id == row.project_id]
    if len(mine) >= max(1, len(registry.live_fingerprints(context, session, row.project_id))):
        return Later(f"waits for {len(mine)} running retunes: one at a time for each live worker", row.project_id)
    cost, run = retune_budget.likely_cost(session, row), retune_budget.dearest_run(session, row)
    for account in retune_budget.accounts(context, session, row.project_id):
        limit = account.limit
        if run > limit.gpu_seconds:
            return Never(f"one run takes about {run:.0f} GPU-seconds, but {account.words}; raise the limit")
        promised = _promised(session, [other for other in running if limit.project_id in (None, other.project_id)])
        left = account.left - promised
        # What is dearer than a whole day goes on over several: it needs a run's worth, and the limit for itself.
        is_long = cost > limit.gpu_seconds
        if left <= 0 or left < (run if is_long else cost) or (is_long and promised > 0):
            more = f", {promised:.0f} of them promised to running retunes" if promised else ""
            return Later(f"waits for the next day: {account.words}{more}", row.project_id)
    return Admitted()


def _promised(session: Session, running: Sequence[RetuneRow]) -> float:
    """GPU-seconds running retunes are likely to use yet."""
    return sum(max(0.0, retune_budget.likely_cost(session, row) - retunes.spent(session, row)) for row in running)
