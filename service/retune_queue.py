"""Ask for retunes, and start those whose time has come. What a retune measures is service.challenge.

At most one retune of a case is unfinished: whoever asks meanwhile, and for whatever cause, gets that one.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from api_schemas.retunes import Cause, RetuneOutcome, RetuneState
from db import retunes
from db.retune_rows import RetuneRow
from service.context import Context
from service.errors import ServiceError
from service.retunes import finish

log = logging.getLogger(__name__)

Start = Callable[[Context, RetuneRow], str]
"""Creates the challenge study of a retune and returns its id; called again for the same retune, it returns the same."""

_CLAIM = timedelta(seconds=60)
"""A replica that dies while it starts a retune is replaced after this."""
_AGAIN = timedelta(minutes=5)
_MOST_TRIES = 5


def request(
    session: Session,
    *,
    project_id: str,
    study_key: str,
    cause: Cause,
    changed_fields: Sequence[str] = (),
    schedule_id: str | None = None,
    not_before: datetime,
    now: datetime,
) -> RetuneRow:
    """Have a recommendation measured again, not before a moment; the retune that is unfinished already, where there is one.

    That one takes in the changed fields. While it is queued, a change puts it off to the later moment (a rolling
    upgrade is one event), and a person who asks brings it forward.
    """
    row, is_new = retunes.put(
        session,
        project_id,
        study_key,
        cause,
        not_before,
        now,
        changed_fields=list(dict.fromkeys(changed_fields)),
        schedule_id=schedule_id,
    )
    if is_new:
        log.info("retune requested", extra={"retune": row.id, "study_key": study_key, "cause": cause})
        return row
    row.changed_fields = list(dict.fromkeys([*row.changed_fields, *changed_fields]))
    if row.state is RetuneState.QUEUED:
        row.not_before = min(row.not_before, not_before) if cause == "manual" else max(row.not_before, not_before)
    session.flush()
    return row


def start_due(context: Context, start: Start) -> int:
    """Start the queued retunes whose time has come, most used recommendation first; returns how many."""
    with context.db.read() as session:
        rows = retunes.due(session, context.now())
    return sum(_start(context, row, start) for row in rows)


def _start(context: Context, row: RetuneRow, start: Start) -> bool:
    now = context.now()
    with context.db.write() as session:
        values = {"state": RetuneState.RUNNING, "started_at": now, "reason": None}
        if not retunes.claim(session, row, now, now + _CLAIM, **values):
            return False
    return begin(context, row.id, start)


def begin(context: Context, retune_id: str, start: Start) -> bool:
    """Create the challenge of a retune that is running and claimed; again after a crash. False: it has to wait."""
    with context.db.read() as session:
        row = retunes.get(session, retune_id)
        assert row is not None
    try:
        study_id = start(context, row)
    except ServiceError as error:
        _put_off(context, retune_id, error.detail)
        return False
    except Exception as error:
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
        if row.tries >= _MOST_TRIES:
            finish(context, session, row, RetuneOutcome.FAILED, f"it could not be started: {why}")
            return
        row.state, row.started_at, row.claimed_until = RetuneState.QUEUED, None, None
        row.not_before, row.reason = context.now() + _AGAIN, f"waits: {why}"
