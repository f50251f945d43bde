"""What finished studies recommend, and which of it is served.

A new answer is served at once where nothing is served yet or it is faster than what is (both measured on one fingerprint),
unless the project (or the operator, for all) demands approval or somebody pinned the present one: then it waits as a
proposal. What a retune found is service.recommendations.renewals' to recommend; what people decide, service.recommendations.decisions'.
"""

import secrets
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.recommendations.best import (
    Answer,
    DecisionAction,
    RecommendationState,
    Renewed,
)
from shardtune.api_schemas.recommendations.tuning_targets import Case
from shardtune.api_schemas.studies.study import StudyResult
from shardtune.db import outbox
from shardtune.db.queries import best
from shardtune.db.tables.best import DecisionRow, RecommendationRow, TuningTargetRow
from shardtune.db.tables.studies import StudyRow
from shardtune.service.http.errors import NotFound
from shardtune.service.process.context import Context

SERVICE = "service"


def propose(context: Context, session: Session, study: StudyRow, now: datetime) -> None:
    """Take in the answer of a study that has ended by `now`. The caller holds the study."""
    assert study.result is not None
    if study.system_study is not None:
        return
    row = served_case(session, study, now)
    found = recommend(session, row, study, study.result, now)
    if needs_approval(context, study) or row.is_pinned:
        notify(session, EventType.BEST_PROPOSED, found, now)
        return
    if row.serving is None or row.serving.study_id == study.id or speed(found) > speed(row.serving):
        has_replaced = row.serving is not None
        serve(session, row, found, now)
        note_decision(session, row, found, DecisionAction.SERVED, SERVICE, None, now)
        if has_replaced:
            notify(session, EventType.BEST_REPLACED, found, now)
    else:
        found.state = RecommendationState.RETIRED
        note_decision(session, row, found, DecisionAction.KEPT, SERVICE, f"{row.serving.id} is faster", now)


def needs_approval(context: Context, study: StudyRow) -> bool:
    """Whether the operator or the study's project has every answer approved."""
    return context.settings.requires_approval or study.project.requires_approval


def served_case(session: Session, study: StudyRow, now: datetime) -> TuningTargetRow:
    """The row of what a study decided, made if there is none; held until the transaction ends."""
    assert study.fingerprint is not None
    case = Case(study.spec.model, study.spec.workload, study.cluster)
    return best.put(
        session,
        study.project_id,
        case.target_key(study.fingerprint.value),
        now,
        target_key_without_fingerprint=case.target_key_without_fingerprint,
        model_key=case.model_key,
        model_type=case.model_type,
        device=study.cluster.device,
    )


def recommend(
    session: Session,
    row: TuningTargetRow,
    study: StudyRow,
    result: StudyResult,
    now: datetime,
    renewed: Renewed | None = None,
) -> RecommendationRow:
    """A proposal of what a study found. The caller holds the study and the row."""
    assert study.fingerprint is not None
    found = RecommendationRow(
        id=f"rec-{secrets.token_hex(8)}",
        project_id=study.project_id,
        target_key=row.target_key,
        study_id=study.id,
        state=RecommendationState.PROPOSED,
        answer=Answer(
            model=study.spec.model,
            workload=study.spec.workload,
            cluster=study.cluster,
            fingerprint=study.fingerprint.value,
            result=result,
            renewed=renewed,
        ),
        created_at=now,
    )
    session.add(found)
    session.flush()
    note_decision(session, row, found, DecisionAction.PROPOSED, SERVICE, None, now)
    row.version += 1
    return found


def notify(session: Session, event: EventType, found: RecommendationRow, now: datetime, **more: Any) -> None:
    """Tell webhooks what became of a recommendation."""
    best_of = found.answer.result.best
    data = {
        "project_id": found.project_id,
        "target_key": found.target_key,
        "recommendation_id": found.id,
        "description": best_of.description,
        "tokens_per_s_per_gpu": best_of.tokens_per_s_per_gpu,
    }
    outbox.notify(session, project_id=found.project_id, study_id=found.study_id, kind=event, data=data | more, now=now)


def adopt_earlier(context: Context) -> None:
    """Recommend what studies found before there were recommendations."""
    with context.db.write() as session:
        for study in best.unrecommended(session):
            if study.result is not None and study.fingerprint is not None:
                propose(context, session, study, study.finished_at or context.now())


def project_of(context: Context, named: str | None) -> str:
    """The project asked about.

    Raises:
        NotFound: it is not the sender's.
    """
    project_id = named or context.principal.home
    if not context.principal.sees(project_id):
        raise NotFound("unknown_project", f"project ({project_id}) is not the key's; leave it out")
    return project_id


def unknown_key(target_key: str) -> NotFound:
    """Nothing was ever measured under this key."""
    return NotFound("unknown_best", f"target_key ({target_key}) has no answer; POST /v1/best:resolve starts a study")


def serve(session: Session, row: TuningTargetRow, found: RecommendationRow, now: datetime, is_new: bool = True) -> None:
    """Give this out from now on. The caller holds the row. `is_new`: it has just been measured."""
    if row.serving is not None and row.serving.id != found.id:
        row.serving.state = RecommendationState.RETIRED
    found.state = RecommendationState.SERVING
    row.serving, row.serving_id, row.updated_at = found, found.id, now
    row.fingerprint_key = found.answer.fingerprint.content_key()
    if is_new:
        row.freshness, row.changed_fields, row.superseded_by = Freshness.FRESH, (), None
        row.stale_since, row.stale_announced_at, row.stale_announced_for = None, None, ()
    row.version += 1
    session.flush()


def note_decision(
    session: Session,
    row: TuningTargetRow,
    found: RecommendationRow,
    action: DecisionAction,
    by: str,
    note: str | None,
    now: datetime,
) -> None:
    """Keep a decision. The caller holds the row."""
    session.add(
        DecisionRow(
            project_id=row.project_id,
            target_key=row.target_key,
            recommendation_id=found.id,
            action=action,
            by=by,
            note=note,
            created_at=now,
        )
    )


def speed(row: RecommendationRow) -> float:
    """Of what it recommends, in tokens_per_s_per_gpu."""
    return row.answer.result.best.tokens_per_s_per_gpu
