"""Read retunes, and end them. Asking for one and starting it is service.retuning.queue."""

import logging
from collections.abc import Sequence
from dataclasses import astuple

from sqlalchemy.orm import Session

from shardtune.api_schemas.retuning.costs import price_of
from shardtune.api_schemas.retuning.retunes import Gain, PlannedRun, Retune, RetuneOutcome, RetunePage, RetuneState
from shardtune.api_schemas.studies.study import StudyState
from shardtune.db.queries import best, retunes, studies
from shardtune.db.queries.retunes import RetuneFilter
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.retunes import RetuneRow
from shardtune.service.http import paging
from shardtune.service.http.errors import Conflict, NotFound
from shardtune.service.http.idempotent_requests import ALWAYS, Once
from shardtune.service.lifecycle import transitions
from shardtune.service.process.context import Context
from shardtune.service.recommendations.record import project_of, unknown_key
from shardtune.service.retuning.cost_benefit import booked

log = logging.getLogger(__name__)

_CANCELLED = "cancelled by a person"


def read(context: Context, retune_id: str) -> Retune:
    """One retune.

    Raises:
        NotFound: there is none of this id in the sender's projects.
    """
    with context.db.read() as session:
        return _views(context, session, [_seen(context, session, retune_id)])[0]


def cancel(context: Context, retune_id: str, once: Once = ALWAYS) -> Retune:
    """End a retune, and take its runs from their workers; what is served stays as it is. A cancelled one stays cancelled.

    Raises:
        NotFound: there is none of this id in the sender's projects.
        Conflict: it has ended otherwise, or is just being started.
    """
    with once.write(context) as session:
        _seen(context, session, retune_id)
        row = _held(session, retune_id)
        if row.state is RetuneState.ENDED and row.reason != _CANCELLED:
            raise Conflict("retune_ended", f"retune {retune_id} has ended ({row.outcome}); nothing is left to cancel")
        if row.state is RetuneState.RUNNING and row.challenge_study_id is None:
            raise Conflict("retune_starting", f"retune {retune_id} is just being started; try again in some seconds")
        _stop(context, session, row, RetuneOutcome.SKIPPED, _CANCELLED)
        return once.answer(session, _views(context, session, [row])[0])


def stop(context: Context, retune_id: str, outcome: RetuneOutcome, why: str) -> None:
    """End a retune and what it still has running."""
    with context.db.write() as session:
        _stop(context, session, _held(session, retune_id), outcome, why)


def _seen(context: Context, session: Session, retune_id: str) -> RetuneRow:
    row = retunes.get(session, retune_id)
    if row is None or not context.principal.sees(row.project_id):
        raise NotFound("unknown_retune", f"retune {retune_id} does not exist; GET /v1/retunes lists those that do")
    return row


def _held(session: Session, retune_id: str) -> RetuneRow:
    """A retune with its challenge, which is locked first (note [lock order]): so no search can begin meanwhile."""
    known = retunes.get(session, retune_id)
    if known is not None and known.challenge_study_id is not None:
        studies.lock(session, known.challenge_study_id)
    return retunes.lock(session, retune_id)


def _stop(context: Context, session: Session, row: RetuneRow, outcome: RetuneOutcome, why: str) -> None:
    for study_id in (row.challenge_study_id, row.search_study_id):
        study = studies.lock(session, study_id) if study_id is not None else None
        if study is not None and study.state.is_open:
            transitions.end_study(session, study, StudyState.CANCELLED, why, context.now())
    finish(context, session, row, outcome, why)


def page(context: Context, wanted: RetuneFilter, token: str | None, limit: int) -> RetunePage:
    """Retunes of the sender's projects, newest first."""
    if not context.principal.sees(wanted.project_id):
        return RetunePage(retunes=())
    wanted = RetuneFilter(
        wanted.project_id or context.principal.project_id, wanted.target_key, wanted.schedule_id, wanted.states
    )
    filters = astuple(wanted)
    with context.db.read() as session:
        after = paging.start(token, filters, paging.moment_and_id)
        rows = retunes.page(session, wanted, after, limit + 1)
        shown, following = paging.cut(rows, limit, filters, lambda row: [row.created_at.isoformat(), row.id])
        return RetunePage(retunes=_views(context, session, shown), next_page_token=following)


def plan(context: Context, target_key: str, planned: PlannedRun, project_id: str | None) -> PlannedRun:
    """Declare the training run a best configuration is for; retunes from now on are held against it.

    Raises:
        NotFound: nothing is known under the key.
    """
    with context.db.write() as session:
        known = best.current(session, project_of(context, project_id), target_key)
        row = best.lock(session, known.project_id, known.target_key) if known is not None else None
        if row is None:
            raise unknown_key(target_key)
        hours = planned.planned_gpu_hours
        row.planned_gpu_seconds = None if hours is None else hours * 3600
    return planned


def finish(
    context: Context, session: Session, row: RetuneRow, outcome: RetuneOutcome, reason: str, gain: Gain | None = None
) -> None:
    """End a retune the caller holds, and book what it saves; one that has ended stays as it is."""
    if row.state is RetuneState.ENDED:
        return
    row.gain = gain or row.gain
    row.expected_saving_gpu_seconds = booked(row.planned_gpu_seconds, outcome, gain.value if gain else None)
    retunes.end(session, row, outcome, reason, context.now())
    extra = {"retune": row.id, "outcome": outcome.value, "gpu_seconds": row.gpu_seconds}
    log.info("retune ended: %s", reason, extra=extra)


def _views(context: Context, session: Session, rows: Sequence[RetuneRow]) -> tuple[Retune, ...]:
    """Retunes as users read them, with what is served of their cases."""
    served = best.served_of(session, {(row.project_id, row.target_key) for row in rows})
    price = context.settings.price_per_gpu_hour
    return tuple(_view(session, row, served.get((row.project_id, row.target_key)), price) for row in rows)


def _view(session: Session, row: RetuneRow, case: TuningTargetRow | None, price: float | None) -> Retune:
    answer = case.serving.answer if case is not None and case.serving is not None else None
    spent = row.gpu_seconds if row.state is RetuneState.ENDED else retunes.spent(session, row)
    return Retune(
        retune_id=row.id,
        project_id=row.project_id,
        target_key=row.target_key,
        cause=row.cause,
        model=answer.model.name if answer else None,
        workload=answer.workload if answer else None,
        changes=row.changes,
        schedule_id=row.schedule_id,
        state=row.state,
        outcome=row.outcome,
        reason=row.reason,
        challenge_study_id=row.challenge_study_id,
        search_study_id=row.search_study_id,
        gpu_seconds=spent,
        price=price_of(spent, price),
        planned_gpu_seconds=row.planned_gpu_seconds,
        expected_saving_gpu_seconds=row.expected_saving_gpu_seconds,
        gain=row.gain,
        not_before=row.not_before,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )
