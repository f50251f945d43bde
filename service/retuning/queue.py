"""Request retunes, and start those that are due. service.retuning.challenge_steps decides what a retune measures.

A tuning target has at most one unfinished retune: further requests, whatever their cause, return that one.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.fingerprints import FieldChange
from shardtune.api_schemas.retuning.retunes import RetuneCause, RetuneOutcome, RetuneState
from shardtune.api_schemas.retuning.schedules import Trigger
from shardtune.db.limits import is_outage
from shardtune.db.queries import best, retunes, schedules
from shardtune.db.tables.retunes import RetuneRow
from shardtune.service.access import retune_budget
from shardtune.service.access.retune_budget import policy_of
from shardtune.service.http.errors import ApiError
from shardtune.service.process.background import sum_unlocked
from shardtune.service.process.context import Context
from shardtune.service.retuning import admission
from shardtune.service.retuning.records import end_retune, stop_retune
from shardtune.service.retuning.target_selection import includes

log = logging.getLogger(__name__)

Start = Callable[[Context, RetuneRow], str]
"""Function that creates the challenge study of a retune (repeated measurement of a recommendation) and returns its
id. Calling it again returns the same id.
"""

CLAIM_TIME = timedelta(seconds=60)
"""Time after which another replica takes over a retune (repeated measurement of a recommendation), because the
replica that was handling it has stopped.
"""
_HOUR_S = 3600.0
_RETRY_AFTER = timedelta(minutes=5)
MAX_TRIES = 5
"""Maximum number of attempts at the same step of a retune (repeated measurement of a recommendation), or at its
start, if it keeps failing.
"""
_TRIGGERS = {RetuneCause.FINGERPRINT: Trigger.FINGERPRINT, RetuneCause.DRIFT: Trigger.DRIFT}
"""Trigger of the schedules that are responsible for a retune (repeated measurement of a recommendation), for each
cause of a retune.
"""


def request_retune(
    session: Session,
    *,
    project_id: str,
    target_key: str,
    cause: RetuneCause,
    changes: Sequence[FieldChange] = (),
    schedule_id: str | None = None,
    not_before: datetime,
    now: datetime,
) -> RetuneRow:
    """Request that a recommendation is measured again (a retune), no earlier than a given moment. If the target has
    an unfinished retune, that one is returned.

    The unfinished retune records the new changes. While it is queued, a change of hardware or software postpones it
    to the later moment, so that a rolling upgrade is one event. A person's request brings it forward and becomes its
    cause.
    """
    policy = _find_policy(session, project_id, target_key, cause, schedule_id)
    row, is_new = retunes.put(
        session,
        project_id,
        target_key,
        cause,
        not_before,
        now,
        changes=tuple(changes),
        schedule_id=policy.schedule_id,
        planned_gpu_seconds=policy.planned_gpu_seconds,
    )
    if is_new:
        log.info("retune requested", extra={"retune": row.id, "target_key": target_key, "cause": cause})
        if policy.why_not is not None:
            retunes.end(session, row, RetuneOutcome.SKIPPED, policy.why_not, now)
        return row
    changes_by_field = {change.field: change for change in row.changes}
    # `was` stays the value of the measurement, however often the field changes since.
    newer_changes = {
        change.field: change.model_copy(update={"was": changes_by_field.get(change.field, change).was})
        for change in changes
    }
    row.changes = tuple((changes_by_field | newer_changes).values())
    if row.state is RetuneState.QUEUED and cause == RetuneCause.MANUAL:
        row.cause, row.not_before = cause, min(row.not_before, not_before)
    elif row.state is RetuneState.QUEUED:
        row.not_before = max(row.not_before, not_before)
    session.flush()
    return row


@dataclass(frozen=True)
class _Policy:
    """Schedule and planned training run that apply to a request for a retune (repeated measurement of a
    recommendation), or the reason why the retune is skipped.
    """

    schedule_id: str | None
    planned_gpu_seconds: float | None
    why_not: str | None = None


def _find_policy(
    session: Session, project_id: str, target_key: str, cause: RetuneCause, schedule_id: str | None
) -> _Policy:
    """Find the schedule that is responsible for a retune (repeated measurement of a recommendation) after a change or
    drift; without a schedule, the project's policy applies.
    """
    case = best.get_target(session, project_id, target_key)
    why_not = None
    schedule = schedules.get(session, schedule_id) if schedule_id is not None else None
    trigger = _TRIGGERS.get(cause)
    if trigger is not None and schedule is None and case is not None:
        project_schedules = schedules.of_trigger(session, project_id, trigger)
        covering = [row for row in project_schedules if includes(session, case, row.spec.targets)]
        schedule = next((row for row in covering if not row.is_paused), None)
        if covering and schedule is None:
            why_not = f"schedule {covering[0].id} is responsible for this, but paused"
        elif not covering and cause == RetuneCause.FINGERPRINT and not policy_of(session, project_id).on_fingerprint:
            why_not = "the project's policy does not retune when hardware or software changes; a schedule with that trigger does"
    hours = schedule.spec.planned_gpu_hours if schedule is not None else None
    planned = hours * _HOUR_S if hours is not None else case.planned_gpu_seconds if case is not None else None
    return _Policy(schedule.id if schedule is not None else None, planned, why_not)


def start_due(context: Context, start: Start) -> int:
    """Start the queued retunes (repeated measurements of recommendations) that are due; those of the most used
    recommendations come first. Returns the number started.

    A retune that waits for budget or a time window stores its `reason`, and delays retunes of recommendations that
    are used less often.
    """
    with context.db.read() as session:
        rows = retunes.due(session, context.now())
    held_up: set[str] = set()
    return sum_unlocked(rows, lambda row: _admit_and_start(context, row, start, held_up), lambda row: row.id)


def _admit_and_start(context: Context, row: RetuneRow, start: Start, held_up: set[str]) -> bool:
    if held_up & {"fleet", row.project_id}:
        return False
    now = context.now()
    with context.db.write() as session:
        # One lock for all replicas: what is left is counted and promised under it.
        retune_budget.lock_ledger(session)
        locked_retune = retunes.lock(session, row.id)
        if locked_retune.state is not RetuneState.QUEUED:
            return False
        decision = admission.decide_admission(context, session, locked_retune)
        match decision:
            case admission.Skip(reason):
                end_retune(context, session, locked_retune, RetuneOutcome.SKIPPED, reason)
                return False
            case admission.Postponed(reason, holds_up):
                held_up.add(holds_up)
                locked_retune.reason = reason
                return False
            case admission.Admitted():
                values = {"state": RetuneState.RUNNING, "started_at": now, "reason": None}
                if not retunes.claim(session, locked_retune, now, now + CLAIM_TIME, **values):
                    return False
            case _:
                assert_never(decision)
    return begin_challenge(context, row.id, start)


def begin_challenge(context: Context, retune_id: str, start: Start) -> bool:
    """Create the challenge study of a running retune, also after a crash; it compares the recommendation with up to
    three other configurations. This replica has claimed the retune. Returns False if the retune has to wait.
    """
    # Outside any transaction: choosing challengers predicts the search space. The id is stored afterwards, so a crash
    # in between repeats the start, which returns the same study.
    with context.db.read() as session:
        row = retunes.get(session, retune_id)
        assert row is not None
    try:
        study_id = start(context, row)
    except ApiError as error:
        if error.code == "nothing_to_decide":
            # The recommendation was withdrawn. Queued again, the retune would wait without end, and its schedule with it.
            stop_retune(context, retune_id, RetuneOutcome.SKIPPED, error.detail)
            return False
        _requeue(context, retune_id, error.detail)
        return False
    except Exception as error:  # a border: a start that always fails is counted and ends its retune, not the loop.
        if is_outage(error):
            raise
        log.exception("a retune could not be started", extra={"retune": retune_id})
        _requeue(context, retune_id, f"{type(error).__name__}: {error}; the service's log has the traceback", True)
        return False
    with context.db.write() as session:
        row = retunes.lock(session, retune_id)
        if row.state is not RetuneState.RUNNING:
            return False
        row.challenge_study_id, row.claimed_until, row.tries = study_id, None, 0
    log.info("retune started", extra={"retune": retune_id, "study": study_id})
    return True


def _requeue(context: Context, retune_id: str, reason: str, is_broken: bool = False) -> None:
    """Return a retune (repeated measurement of a recommendation) to the queue, because no worker can run it now or
    its start failed. A failed start is repeated a limited number of times.
    """
    with context.db.write() as session:
        row = retunes.lock(session, retune_id)
        if row.state is not RetuneState.RUNNING:
            return
        row.tries += 1 if is_broken else 0
        if row.tries >= MAX_TRIES:
            end_retune(context, session, row, RetuneOutcome.FAILED, f"it could not be started: {reason}")
            return
        row.state, row.started_at, row.claimed_until = RetuneState.QUEUED, None, None
        row.not_before, row.reason = context.now() + _RETRY_AFTER, f"waits: {reason}"
