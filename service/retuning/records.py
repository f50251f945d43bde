"""Read retunes, and end them. service.retuning.queue requests and starts retunes."""

import logging
from collections.abc import Sequence
from dataclasses import astuple

from sqlalchemy.orm import Session

from shardtune.api_schemas.retuning.costs import price_of
from shardtune.api_schemas.retuning.retunes import Gain, PlannedRun, Retune, RetuneOutcome, RetunePage, RetuneState
from shardtune.api_schemas.studies.reasons import StudyReason, StudyReasonCode
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.db.queries import best, retunes, studies
from shardtune.db.queries.retunes import RetuneFilter
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.retunes import RetuneRow
from shardtune.service.http import paging
from shardtune.service.http.errors import Conflict, NotFound
from shardtune.service.http.idempotent_requests import NO_KEY, IdempotencyKey
from shardtune.service.lifecycle import transitions
from shardtune.service.process.context import Context
from shardtune.service.recommendations.record import project_of, unknown_target
from shardtune.service.retuning.cost_benefit import realized_saving

log = logging.getLogger(__name__)

_CANCELLED = "cancelled by a person"


def read(context: Context, retune_id: str) -> Retune:
    """Read one retune (repeated measurement of a recommendation) by its id.

    Raises:
        NotFound: the sender's projects have no retune of this id.
    """
    with context.db.read() as session:
        return _retune_views(context, session, [_must_exist(context, session, retune_id)])[0]


def cancel_retune(context: Context, retune_id: str, idempotency: IdempotencyKey = NO_KEY) -> Retune:
    """End a retune (repeated measurement of a recommendation), and take its runs from their workers; the recommendation
    stays. An already cancelled retune stays unchanged.

    Raises:
        NotFound: the sender's projects have no retune of this id.
        Conflict: the retune has ended otherwise, or is just being started.
    """
    with idempotency.write(context) as session:
        _must_exist(context, session, retune_id)
        row = _lock(session, retune_id)
        if row.state is RetuneState.ENDED and row.reason != _CANCELLED:
            raise Conflict("retune_ended", f"retune {retune_id} has ended ({row.outcome}); nothing is left to cancel")
        # Its challenge is being created by a replica without a lock; cancelled now, the study would run without its
        # retune.
        if row.state is RetuneState.RUNNING and row.challenge_study_id is None:
            raise Conflict("retune_starting", f"retune {retune_id} is just being started; try again in some seconds")
        _stop(context, session, row, RetuneOutcome.SKIPPED, _CANCELLED)
        return idempotency.answer(session, _retune_views(context, session, [row])[0])


def stop_retune(context: Context, retune_id: str, outcome: RetuneOutcome, reason: str) -> None:
    """End a retune (repeated measurement of a recommendation) and the studies that it has started and that have not
    ended.
    """
    with context.db.write() as session:
        _stop(context, session, _lock(session, retune_id), outcome, reason)


def _must_exist(context: Context, session: Session, retune_id: str) -> RetuneRow:
    row = retunes.get(session, retune_id)
    if row is None or not context.principal.sees(row.project_id):
        message = f"retune {retune_id} does not exist"
        raise NotFound("unknown_retune", message, api_remedy="GET /v1/retunes lists those that do")
    return row


def _lock(session: Session, retune_id: str) -> RetuneRow:
    """Lock the rows of a retune (repeated measurement of a recommendation) and of the challenge study that runs it."""
    # The challenge is locked first (note [lock order]), so that no search can begin meanwhile.
    retune = retunes.get(session, retune_id)
    if retune is not None and retune.challenge_study_id is not None:
        studies.lock(session, retune.challenge_study_id)
    return retunes.lock(session, retune_id)


def _stop(context: Context, session: Session, row: RetuneRow, outcome: RetuneOutcome, reason: str) -> None:
    for study_id in (row.challenge_study_id, row.search_study_id):
        study = studies.lock(session, study_id) if study_id is not None else None
        if study is not None and study.state.is_open:
            withdrawn = StudyReason(code=StudyReasonCode.CANCELLED, text=reason)
            transitions.end_study(session, study, StudyState.CANCELLED, withdrawn, context.now())
    end_retune(context, session, row, outcome, reason)


def list_retunes(context: Context, retune_filter: RetuneFilter, token: str | None, limit: int) -> RetunePage:
    """Retunes (repeated measurements of recommendations) of the projects visible to the sender, newest first."""
    if not context.principal.sees(retune_filter.project_id):
        return RetunePage(retunes=())
    retune_filter = RetuneFilter(
        retune_filter.project_id or context.principal.project_id,
        retune_filter.target_key,
        retune_filter.schedule_id,
        retune_filter.states,
    )
    filters = astuple(retune_filter)
    with context.db.read() as session:
        after = paging.parse_token(token, filters, paging.moment_and_id)
        rows = retunes.page(session, retune_filter, after, limit + 1)
        page_rows, next_token = paging.split_page(
            rows, limit, filters, lambda row: [row.created_at.isoformat(), row.id]
        )
        return RetunePage(retunes=_retune_views(context, session, page_rows), next_page_token=next_token)


def declare_run(context: Context, target_key: str, declared: PlannedRun, project_id: str | None) -> PlannedRun:
    """Declare the training run that a recommendation is for; the cost of the recommendation's retunes (repeated
    measurements of recommendations) is then compared with the saving in that run.

    Raises:
        NotFound: the target key has no recommendation.
    """
    with context.db.write() as session:
        current = best.current_target(session, project_of(context, project_id), target_key)
        row = best.lock(session, current.project_id, current.target_key) if current is not None else None
        if row is None:
            raise unknown_target(target_key)
        hours = declared.planned_gpu_hours
        row.planned_gpu_seconds = None if hours is None else hours * 3600
    return declared


def end_retune(
    context: Context, session: Session, row: RetuneRow, outcome: RetuneOutcome, reason: str, gain: Gain | None = None
) -> None:
    """End a retune (repeated measurement of a recommendation) that the caller has locked, and record the GPU-seconds
    that it saves; an already ended retune stays unchanged.
    """
    if row.state is RetuneState.ENDED:
        return
    row.gain = gain or row.gain
    row.expected_saving_gpu_seconds = realized_saving(row.planned_gpu_seconds, outcome, gain.value if gain else None)
    retunes.end(session, row, outcome, reason, context.now())
    extra = {"retune": row.id, "outcome": outcome.value, "gpu_seconds": row.gpu_seconds}
    log.info("retune ended: %s", reason, extra=extra)


def _retune_views(context: Context, session: Session, rows: Sequence[RetuneRow]) -> tuple[Retune, ...]:
    """Convert retunes (repeated measurements of recommendations) into the API's model, with the recommendations of
    their tuning targets (model, workload, cluster).
    """
    targets = best.get_targets(session, {(row.project_id, row.target_key) for row in rows})
    price = context.settings.price_per_gpu_hour
    return tuple(_retune_view(session, row, targets.get((row.project_id, row.target_key)), price) for row in rows)


def _retune_view(session: Session, row: RetuneRow, case: TuningTargetRow | None, price: float | None) -> Retune:
    answer = case.recommended.answer if case is not None and case.recommended is not None else None
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
        waits_for_budget=row.waits_for_budget,
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
