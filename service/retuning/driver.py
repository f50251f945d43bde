"""Drive the retunes that run: begin again what a crash left, advance, stop what is not worth going on with."""

import logging
from collections.abc import Callable

from sqlalchemy.orm import Session

from shardtune.api_schemas.retuning.retunes import RetuneCause, RetuneOutcome, RetuneState
from shardtune.db.limits import is_outage
from shardtune.db.queries import retunes, studies
from shardtune.db.tables.retunes import RetuneRow
from shardtune.service.access import retune_budget
from shardtune.service.process.background import count_done
from shardtune.service.process.context import Context
from shardtune.service.retuning import admission, cost_benefit
from shardtune.service.retuning.queue import CLAIM, MOST_TRIES, Start, begin
from shardtune.service.retuning.records import stop

log = logging.getLogger(__name__)

Advance = Callable[[Context, RetuneRow], None]
"""Looks at a retune's studies and takes its next step, if it has one; any number of times."""

_WAITS = "waits for the next day: "


def drive(context: Context, start: Start, advance: Advance) -> int:
    """Take the next step of every running retune that no other replica drives; returns how many were looked at."""
    with context.db.read() as session:
        rows = retunes.running(session)
    return count_done(rows, lambda row: _drive(context, row, start, advance), lambda row: row.id)


def _drive(context: Context, row: RetuneRow, start: Start, advance: Advance) -> bool:
    now = context.now()
    with context.db.write() as session:
        if not retunes.claim(session, row, now, now + CLAIM):
            return False
    if row.challenge_study_id is None:
        return begin(context, row.id, start)
    with context.db.read() as session:
        why = _why_stop(session, row)
    if why is not None:
        stop(context, row.id, RetuneOutcome.INCONCLUSIVE, why)
        return True
    try:
        advance(context, row)
    except Exception as error:  # a border: a step that always breaks is counted and ends its retune, not the loop
        if is_outage(error):
            raise  # no fault of the step's: whoever looks when the claim has ended takes it again
        log.exception("a retune's step broke", extra={"retune": row.id})
        _note_broken(context, row.id, f"{type(error).__name__}: {error}; the service's log has the traceback")
        return True
    _release(context, row.id)
    return True


def _why_stop(session: Session, row: RetuneRow) -> str | None:
    spec = admission.schedule_of(session, row)
    likely_gain, most = (spec.likely_gain, spec.max_gpu_seconds) if spec is not None else (None, None)
    planned = row.planned_gpu_seconds if row.cause != RetuneCause.MANUAL else None
    return cost_benefit.why_stop(retunes.spent(session, row), planned, likely_gain, most)


def _note_broken(context: Context, retune_id: str, why: str) -> None:
    with context.db.write() as session:
        row = retunes.lock(session, retune_id)
        row.tries, row.claimed_until = row.tries + 1, None
        is_final = row.tries >= MOST_TRIES
    if is_final:
        stop(context, retune_id, RetuneOutcome.FAILED, f"its next step broke {MOST_TRIES} times: {why}")


def _release(context: Context, retune_id: str) -> None:
    """Leave a retune to whoever looks next; say so where it waits for money."""
    with context.db.write() as session:
        row = retunes.lock(session, retune_id)
        row.claimed_until, row.tries = None, 0
        if row.state is not RetuneState.RUNNING:
            return
        words = _why_idle(context, session, row)
        if words is not None or (row.reason or "").startswith(_WAITS):
            row.reason = words


def _why_idle(context: Context, session: Session, row: RetuneRow) -> str | None:
    study_id = row.search_study_id or row.challenge_study_id
    assert study_id is not None
    study = studies.get(session, study_id)
    if study is None or not study.state.is_open:
        return None
    run = retune_budget.likely_run(session, study_id, study.cluster.world_size)
    short = [account for account in retune_budget.accounts(context, session, row.project_id) if account.left < run]
    return f"{_WAITS}{short[0].words}, and a run takes about {run:.0f}" if short else None
