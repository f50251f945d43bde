"""Decide whether a queued retune may start now, by time windows, the day's budget, running retunes, and the retune's
likely benefit.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas import times
from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.retuning.retunes import RetuneCause
from shardtune.api_schemas.retuning.schedules import ScheduleSpec
from shardtune.db.queries import retunes, schedules
from shardtune.db.tables.retunes import RetuneRow
from shardtune.service.access import retune_budget
from shardtune.service.process.context import Context
from shardtune.service.retuning import cost_benefit
from shardtune.service.workers import registry


@dataclass(frozen=True)
class Postponed:
    """Decision about a queued retune (repeated measurement of a recommendation): it has to wait."""

    reason: str
    # A project's own wait must not hold up other projects; a closed window of the fleet holds up everybody.
    blocked_scope: str = ""
    """Retunes that must not start before this one, which waits: a project's id stands for the retunes of that
    project, `fleet` for the retunes of all projects, and an empty text for none.
    """


@dataclass(frozen=True)
class Skip:
    """Decision about a queued retune (repeated measurement of a recommendation): it is skipped."""

    reason: str


@dataclass(frozen=True)
class Admitted:
    """Decision about a queued retune (repeated measurement of a recommendation): it may start."""


Admission = Admitted | Postponed | Skip


def decide_admission(context: Context, session: Session, row: RetuneRow) -> Admission:
    """Decide whether a retune (repeated measurement of a recommendation) may start now, must wait, or is skipped. The
    caller has locked the retuning budget.
    """
    spec = schedule_of(session, row)
    # A person who asks for a retune has decided that it is worth its cost.
    if row.cause != RetuneCause.MANUAL:
        reason = cost_benefit.why_not_worthwhile(
            retune_budget.likely_cost(session, row), row.planned_gpu_seconds, spec.likely_gain if spec else None
        )
        if reason is not None:
            return Skip(reason)
    return _check_windows(context, session, row, spec, context.now()) or _check_budget(context, session, row)


def schedule_of(session: Session, row: RetuneRow) -> ScheduleSpec | None:
    """Settings of the schedule that requested a retune (repeated measurement of a recommendation); None if no
    schedule did.
    """
    schedule = schedules.get(session, row.schedule_id) if row.schedule_id is not None else None
    return None if schedule is None else schedule.spec


def _check_windows(
    context: Context, session: Session, row: RetuneRow, spec: ScheduleSpec | None, now: datetime
) -> Postponed | None:
    policy, settings = retune_budget.policy_of(session, row.project_id), context.settings
    rules = [
        ("the fleet", settings.retune_windows, settings.retune_timezone, "fleet"),
        (f"project {row.project_id}", policy.windows, policy.timezone, row.project_id),
    ]
    if spec is not None:
        rules.append(("its schedule", spec.windows, spec.timezone, ""))
    for owner, windows, timezone, holds_up in rules:
        if not times.is_open(windows, timezone, now):
            return Postponed(f"waits for a window of {owner}: {', '.join(windows)} ({timezone})", holds_up)
    return None


def _check_budget(context: Context, session: Session, row: RetuneRow) -> Admission:
    running = retunes.running(session)
    # Two retunes on one worker would only take turns, and each would last twice as long.
    own_retunes = [other for other in running if other.project_id == row.project_id]
    if len(own_retunes) >= max(1, len(registry.live_fingerprints(context, session, row.project_id))):
        running_count = counted(len(own_retunes), "running retune")
        return Postponed(f"waits for {running_count}: one at a time for each live worker", row.project_id)
    cost, run_cost = retune_budget.likely_cost(session, row), retune_budget.most_expensive_run(session, row)
    promised = _promised_gpu_seconds(session, running)
    for account in retune_budget.budgets_of(context, session, row.project_id, promised):
        limit = account.limit
        if run_cost > limit.gpu_seconds:
            return Skip(f"one run takes about {run_cost:.0f} GPU-seconds, but {account.explanation}; raise the limit")
        remaining = account.gpu_seconds_left - account.promised
        # A retune more expensive than a whole day's budget runs over several days: it needs enough for one run, and no
        # other retune beside it.
        is_long = cost > limit.gpu_seconds
        if remaining <= 0 or remaining < (run_cost if is_long else cost) or (is_long and account.promised > 0):
            promised_text = f", {account.promised:.0f} of them promised to running retunes" if account.promised else ""
            return Postponed(
                f"waits for budget, at most until the next day: {account.explanation}{promised_text}", row.project_id
            )
    return Admitted()


def _promised_gpu_seconds(session: Session, running: Sequence[RetuneRow]) -> Mapping[str, float]:
    """GPU-seconds that the running retunes (repeated measurements of recommendations) of each project will probably
    still use."""
    promised: defaultdict[str, float] = defaultdict(float)
    for row in running:
        promised[row.project_id] += max(0.0, retune_budget.likely_cost(session, row) - retunes.spent(session, row))
    return promised
