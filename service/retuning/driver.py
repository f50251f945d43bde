"""Drive running retunes: resume steps that a crash interrupted, advance, and stop retunes that are not worthwhile."""

import logging
from collections.abc import Callable

from sqlalchemy.orm import Session

from shardtune.api_schemas.retuning.retunes import RetuneCause, RetuneOutcome, RetuneState
from shardtune.db.limits import is_outage
from shardtune.db.queries import retunes, studies
from shardtune.db.tables.retunes import RetuneRow
from shardtune.service.access import retune_budget
from shardtune.service.process.background import sum_unlocked
from shardtune.service.process.context import Context
from shardtune.service.retuning import admission, cost_benefit
from shardtune.service.retuning.queue import CLAIM_TIME, MAX_TRIES, Start, begin_challenge
from shardtune.service.retuning.records import stop_retune

log = logging.getLogger(__name__)

Advance = Callable[[Context, RetuneRow], None]
"""Function that takes the next step of a retune (repeated measurement of a recommendation), if a step is due. Calling
it again for the same step has no further effect.
"""


def drive(context: Context, start: Start, advance: Advance) -> int:
    """Take the next step of every running retune (repeated measurement of a recommendation) that no other replica is
    handling; returns the number of retunes handled.
    """
    with context.db.read() as session:
        rows = retunes.running(session)
    return sum_unlocked(rows, lambda row: _take_step(context, row, start, advance), lambda row: row.id)


def _take_step(context: Context, row: RetuneRow, start: Start, advance: Advance) -> bool:
    now = context.now()
    with context.db.write() as session:
        # The claim expires by itself: if this replica dies, another one continues after CLAIM.
        if not retunes.claim(session, row, now, now + CLAIM_TIME):
            return False
    if row.challenge_study_id is None:
        return begin_challenge(context, row.id, start)
    with context.db.read() as session:
        reason = _why_stop(session, row)
    if reason is not None:
        stop_retune(context, row.id, RetuneOutcome.INCONCLUSIVE, reason)
        return True
    try:
        advance(context, row)
    except Exception as error:  # a border: a step that always fails is counted and ends its retune, not the loop.
        if is_outage(error):
            raise  # Not the step's fault: a replica takes it again when the claim has expired.
        log.exception("a retune's step broke", extra={"retune": row.id})
        _record_failed_step(context, row.id, f"{type(error).__name__}: {error}; the service's log has the traceback")
        return True
    _release(context, row.id)
    return True


def _why_stop(session: Session, row: RetuneRow) -> str | None:
    spec = admission.schedule_of(session, row)
    likely_gain, max_gpu_seconds = (spec.likely_gain, spec.max_gpu_seconds) if spec is not None else (None, None)
    planned = row.planned_gpu_seconds if row.cause != RetuneCause.MANUAL else None
    return cost_benefit.why_stop(retunes.spent(session, row), planned, likely_gain, max_gpu_seconds)


def _record_failed_step(context: Context, retune_id: str, reason: str) -> None:
    with context.db.write() as session:
        row = retunes.lock(session, retune_id)
        row.tries, row.claimed_until = row.tries + 1, None
        is_final = row.tries >= MAX_TRIES
    if is_final:
        stop_retune(context, retune_id, RetuneOutcome.FAILED, f"its next step failed {MAX_TRIES} times: {reason}")


def _release(context: Context, retune_id: str) -> None:
    """Release this replica's claim on a retune (repeated measurement of a recommendation). If the retune waits for
    budget, store that as its reason.
    """
    with context.db.write() as session:
        row = retunes.lock(session, retune_id)
        row.claimed_until, row.tries = None, 0
        if row.state is not RetuneState.RUNNING:
            return
        reason = _why_idle(context, session, row)
        if reason is not None or row.waits_for_budget:
            row.reason, row.waits_for_budget = reason, reason is not None


def _why_idle(context: Context, session: Session, row: RetuneRow) -> str | None:
    study_id = row.search_study_id or row.challenge_study_id
    assert study_id is not None
    study = studies.get(session, study_id)
    if study is None or not study.state.is_open:
        return None
    run_cost = retune_budget.likely_run_cost(session, study_id, study.cluster.world_size)
    insufficient = [
        account
        for account in retune_budget.budgets_of(context, session, row.project_id)
        if account.gpu_seconds_left < run_cost
    ]
    return (
        f"waits for budget, at most until the next day: {insufficient[0].explanation}, and a run takes about {run_cost:.0f}"
        if insufficient
        else None
    )
