"""Ask for retunes, and start those whose time has come. What a retune measures is service.retuning.challenge_steps.

At most one retune of a case is unfinished: whoever asks meanwhile, and for whatever cause, gets that one.
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
from shardtune.service.process.background import count_done
from shardtune.service.process.context import Context
from shardtune.service.retuning import admission
from shardtune.service.retuning.records import finish
from shardtune.service.retuning.target_selection import covers

log = logging.getLogger(__name__)

Start = Callable[[Context, RetuneRow], str]
"""Creates the challenge study of a retune and returns its id; called again for the same retune, it returns the same."""

CLAIM = timedelta(seconds=60)
"""A replica that dies while it drives a retune is replaced after this."""
_HOUR_S = 3600.0
_AGAIN = timedelta(minutes=5)
MOST_TRIES = 5
"""Of a start or a step that breaks."""
_TRIGGERS = {RetuneCause.FINGERPRINT: Trigger.FINGERPRINT, RetuneCause.DRIFT: Trigger.DRIFT}
"""Of the schedules whose business a cause is."""


def request(
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
    """Have a recommendation measured again, not before a moment; the retune that is unfinished already, where there is one.

    That one takes in the changes. While it is queued, a change puts it off to the later moment (a rolling
    upgrade is one event), and a person who asks brings it forward and makes it theirs.
    """
    asked = _policy(session, project_id, target_key, cause, schedule_id)
    row, is_new = retunes.put(
        session,
        project_id,
        target_key,
        cause,
        not_before,
        now,
        changes=tuple(changes),
        schedule_id=asked.schedule_id,
        planned_gpu_seconds=asked.planned_gpu_seconds,
    )
    if is_new:
        log.info("retune requested", extra={"retune": row.id, "target_key": target_key, "cause": cause})
        if asked.why_not is not None:
            retunes.end(session, row, RetuneOutcome.SKIPPED, asked.why_not, now)
        return row
    known = {change.field: change for change in row.changes}
    # What was measured on stays what it was, however often it changes since.
    newer = {one.field: one.model_copy(update={"was": known.get(one.field, one).was}) for one in changes}
    row.changes = tuple((known | newer).values())
    if row.state is RetuneState.QUEUED and cause == RetuneCause.MANUAL:
        row.cause, row.not_before = cause, min(row.not_before, not_before)
    elif row.state is RetuneState.QUEUED:
        row.not_before = max(row.not_before, not_before)
    session.flush()
    return row


@dataclass(frozen=True)
class _Policy:
    """What schedules and project say to a request."""

    schedule_id: str | None
    planned_gpu_seconds: float | None
    why_not: str | None = None


def _policy(session: Session, project_id: str, target_key: str, cause: RetuneCause, schedule_id: str | None) -> _Policy:
    """A change or drift is the business of the schedules for that, if any covers the case; else of the project."""
    case = best.served(session, project_id, target_key)
    why_not = None
    found = schedules.get(session, schedule_id) if schedule_id is not None else None
    trigger = _TRIGGERS.get(cause)
    if trigger is not None and found is None and case is not None:
        of_project = schedules.of_trigger(session, project_id, trigger)
        for_it = [row for row in of_project if covers(session, case, row.spec.cases)]
        found = next((row for row in for_it if not row.is_paused), None)
        if for_it and found is None:
            why_not = f"schedule {for_it[0].id} is for this, and it is paused"
        elif not for_it and cause == RetuneCause.FINGERPRINT and not policy_of(session, project_id).on_fingerprint:
            why_not = "this project does not measure again by itself when hardware or software changes; a schedule for that does"
    hours = found.spec.planned_gpu_hours if found is not None else None
    planned = hours * _HOUR_S if hours is not None else case.planned_gpu_seconds if case is not None else None
    return _Policy(found.id if found is not None else None, planned, why_not)


def start_due(context: Context, start: Start) -> int:
    """Start the queued retunes whose time has come, most used recommendation first; returns how many.

    What has to wait for money or a window holds up what is less used; it says so in its `reason`.
    """
    with context.db.read() as session:
        rows = retunes.due(session, context.now())
    held_up: set[str] = set()
    return count_done(rows, lambda row: _start(context, row, start, held_up), lambda row: row.id)


def _start(context: Context, row: RetuneRow, start: Start, held_up: set[str]) -> bool:
    if held_up & {"fleet", row.project_id}:
        return False
    now = context.now()
    with context.db.write() as session:
        # Money is counted and promised under one lock, whichever replica does it.
        retune_budget.hold(session)
        found = retunes.lock(session, row.id)
        if found.state is not RetuneState.QUEUED:
            return False
        decision = admission.decide(context, session, found)
        match decision:
            case admission.Never(reason):
                finish(context, session, found, RetuneOutcome.SKIPPED, reason)
                return False
            case admission.Later(reason, holds_up):
                held_up.add(holds_up)
                found.reason = reason
                return False
            case admission.Admitted():
                values = {"state": RetuneState.RUNNING, "started_at": now, "reason": None}
                if not retunes.claim(session, found, now, now + CLAIM, **values):
                    return False
            case _:
                assert_never(decision)
    return begin(context, row.id, start)


def begin(context: Context, retune_id: str, start: Start) -> bool:
    """Create the challenge of a retune that is running and claimed; again after a crash. False: it has to wait."""
    with context.db.read() as session:
        row = retunes.get(session, retune_id)
        assert row is not None
    try:
        study_id = start(context, row)
    except ApiError as error:
        _put_off(context, retune_id, error.detail)
        return False
    except Exception as error:  # a border: a start that always breaks is counted and ends its retune, not the loop
        if is_outage(error):
            raise
        log.exception("a retune could not be started", extra={"retune": retune_id})
        _put_off(context, retune_id, f"{type(error).__name__}: {error}; the service's log has the traceback", True)
        return False
    with context.db.write() as session:
        row = retunes.lock(session, retune_id)
        if row.state is not RetuneState.RUNNING:
            return False
        row.challenge_study_id, row.claimed_until, row.tries = study_id, None, 0
    log.info("retune started", extra={"retune": retune_id, "study": study_id})
    return True


def _put_off(context: Context, retune_id: str, why: str, is_broken: bool = False) -> None:
    """Back into the queue: nobody can run it now, or starting it broke, which is tried so often only."""
    with context.db.write() as session:
        row = retunes.lock(session, retune_id)
        if row.state is not RetuneState.RUNNING:
            return
        row.tries += 1 if is_broken else 0
        if row.tries >= MOST_TRIES:
            finish(context, session, row, RetuneOutcome.FAILED, f"it could not be started: {why}")
            return
        row.state, row.started_at, row.claimed_until = RetuneState.QUEUED, None, None
        row.not_before, row.reason = context.now() + _AGAIN, f"waits: {why}"
