"""Send canaries: when one is due, and which worker runs it. What they find is service.canaries.judge's to judge.

A canary stands for a moment (the begin of a period, or a schedule's tick), so that any number of replicas sends it once.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.retuning.canaries import CanaryRole, CanaryVerdict
from shardtune.api_schemas.retuning.retunes import OPEN_RETUNE_STATES
from shardtune.api_schemas.retuning.schedules import Trigger
from shardtune.api_schemas.studies.study import Budget
from shardtune.api_schemas.studies.system_studies import SystemStudy, SystemStudyKind
from shardtune.db.queries import best, canaries, retunes, schedules
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.db.tables.canaries import CanaryRow
from shardtune.db.tables.studies import WorkerRow
from shardtune.service.canaries import reference
from shardtune.service.process.context import Context
from shardtune.service.retuning import system_studies
from shardtune.service.retuning.target_selection import covers
from shardtune.service.workers import compatibility
from shardtune.tuner.freshness import drift

_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Sent:
    """A canary is on its way."""


@dataclass(frozen=True)
class NotSent:
    """None is sent of this moment."""

    reason: str


def watched(context: Context, session: Session) -> list[tuple[str, str, float | None]]:
    """Project and key of what is looked at, and the period of its canaries; None where drift schedules send them."""
    period_s, drifts = context.settings.canary_period_s, schedules.timed(session, Trigger.DRIFT)
    found = []
    for row in canaries.watched(session) if period_s or drifts else ():
        own = [one for one in drifts if one.project_id == row.project_id and covers(session, row, one.spec.cases)]
        if any(not one.is_paused for one in own) or (period_s and not own):
            found.append((row.project_id, row.target_key, None if own else period_s))
    return found


def begin(context: Context, project_id: str, target_key: str, period_s: float | None) -> bool:
    """Send the canary that is due now, if any: one per period.

    A recommendation that rests on too few runs to be held against has its first one at once, which makes up for them; with
    period None, no other.
    """
    with context.db.read() as session:
        row = best.served(session, project_id, target_key)
        moment = _due(context, session, row, period_s) if row is not None else None
        if row is None or moment is None or isinstance(_worker(context, session, row, moment), NotSent):
            return False
    try:
        with context.db.write() as session:
            return isinstance(send(context, session, project_id, target_key, moment), Sent)
    except IntegrityError:
        return False  # another replica sent it


def send(context: Context, session: Session, project_id: str, target_key: str, moment: datetime) -> Sent | NotSent:
    """Send a case's canary of a moment, in the caller's transaction.

    Raises:
        IntegrityError: another replica sent it just now.
    """
    # Not held: where another answer is served from now on, service.canaries.judge says so.
    row = best.served(session, project_id, target_key)
    if row is None:
        return NotSent("nothing is known of it")
    found = _worker(context, session, row, moment)
    if isinstance(found, NotSent):
        return found
    _add(context, session, row, found, _number(moment), CanaryRole.WATCH)
    return Sent()


def send_peer(context: Context, canary_id: str, worker_id: str) -> None:
    """Have another worker run the same as a canary that looks slow."""
    try:
        with context.db.write() as session:
            canary, worker = session.get(CanaryRow, canary_id), session.get(WorkerRow, worker_id)
            assert canary is not None and worker is not None
            row = best.served(session, canary.project_id, canary.target_key)
            if row is not None and row.serving_id == canary.recommendation_id:
                _add(context, session, row, worker, canary.tick, CanaryRole.PEER)
    except IntegrityError:
        pass  # another replica sent it


def able(context: Context, session: Session, row: TuningTargetRow, serving: RecommendationRow) -> list[WorkerRow]:
    """Workers on which the recommendation was measured, as far as fingerprints tell."""
    answer = serving.answer
    found = system_studies.able(context, session, row.project_id, answer.model, answer.cluster)
    return [worker for worker in found if not compatibility.changed_fields(worker, serving.study)]


def _due(context: Context, session: Session, row: TuningTargetRow, period_s: float | None) -> datetime | None:
    """The moment whose canary is due by now."""
    serving, now = row.serving, context.now()
    if serving is None:
        return None
    if serving.answer.result.best.runs < drift.FEWEST and reference.normal(session, row, serving).lacking:
        known = canaries.of_case(session, row.project_id, row.target_key)
        if not any(canary.recommendation_id == serving.id for canary in known):
            return serving.created_at
    if period_s is None or now - serving.created_at < timedelta(seconds=period_s):
        return None
    return now - (now - _EPOCH) % timedelta(seconds=period_s)


def _worker(context: Context, session: Session, row: TuningTargetRow, moment: datetime) -> WorkerRow | NotSent:
    """Who runs the canary of a moment: the worker that had one longest ago; or why nobody does."""
    if row.serving is None or row.superseded_by is not None or row.freshness != Freshness.FRESH:
        return NotSent("what is served is not fresh")
    known = canaries.of_case(session, row.project_id, row.target_key)
    if any(canary.verdict in (None, CanaryVerdict.SLOW) for canary in known):
        return NotSent("its last canary has not ended")
    if _number(moment) < _number(row.serving.created_at) or any(canary.tick >= _number(moment) for canary in known):
        return NotSent("it was measured since")
    if retunes.page(session, retunes.RetuneFilter(row.project_id, row.target_key, states=OPEN_RETUNE_STATES), None, 1):
        return NotSent("a retune of it is unfinished")
    found = able(context, session, row, row.serving)
    if not found:
        return NotSent("no live worker has the fingerprint it was measured on")
    last = {canary.worker_id: canary.created_at for canary in known}
    return min(found, key=lambda one: (last.get(one.id, _EPOCH), one.name))


def _add(
    context: Context, session: Session, row: TuningTargetRow, worker: WorkerRow, tick: int, role: CanaryRole
) -> None:
    assert row.serving is not None
    name = hashlib.sha256(f"{row.project_id}:{row.target_key}:{tick}:{role}".encode()).hexdigest()[:12]
    now, normal = context.now(), reference.normal(session, row, row.serving, worker.id)
    system_study = SystemStudy(
        kind=SystemStudyKind.CANARY,
        worker_id=worker.id,
        repeat_below=drift.alarm_below(normal.known, normal.earlier) if normal.known is not None else None,
        most_runs=drift.MOST_RUNS if normal.known is not None else normal.lacking,
    )
    study = system_studies.add(
        session,
        f"study-{name}",
        system_studies.origin(session, row.serving),
        worker.fingerprint_key,
        row.serving.answer.result.best.config,
        system_study,
        Budget(max_trials=1),
        (),
        now,
    )
    session.add(
        CanaryRow(
            id=f"canary-{name}",
            project_id=row.project_id,
            target_key=row.target_key,
            recommendation_id=row.serving_id,
            worker_id=worker.id,
            study_id=study.id,
            tick=tick,
            role=role,
            created_at=now,
        )
    )
    session.flush()


def _number(moment: datetime) -> int:
    """Whole seconds, so that canaries of any period, and of schedules, are in one order."""
    return int((moment - _EPOCH).total_seconds())
