"""Record the results of finished studies as recommendations, and choose the current recommendation of each tuning
target.

A new result becomes current at once if there is no recommendation yet, or if it is faster than the current one (both
measured on one fingerprint). If the project or the operator requires approval, or the current recommendation is pinned,
the result waits as a proposal. service.recommendations.renewals handles results of retunes,
service.recommendations.decisions those of users.
"""

import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.recommendations.best import (
    Answer,
    DecisionAction,
    EarlierVerdict,
    RecommendationState,
)
from shardtune.api_schemas.recommendations.tuning_targets import TuningTarget
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.db import outbox
from shardtune.db.queries import best
from shardtune.db.queries.recommendations import study_recommendations
from shardtune.db.tables.best import DecisionRow, RecommendationRow, TuningTargetRow
from shardtune.db.tables.studies import StudyRow
from shardtune.service.http.errors import NotFound
from shardtune.service.process.context import Context
from shardtune.service.recommendations.target_report import report_confirmation

_WHY_KEPT = {
    Verdict.TOO_BUSY: "the machine was too busy to compare again",
    Verdict.UNDECIDED: "the new comparison was undecided",
    Verdict.NOT_FASTER: "the new comparison found its candidate not faster, which does not outweigh the confirmed answer",
}
"""Reason why an extended study keeps its confirmed result, by the verdict of its newest final comparison."""


@dataclass(frozen=True)
class DecidedBy:
    """API key that made a decision about a recommendation, or the service itself."""

    name: str
    """Name of the API key, or `service`."""
    key_id: str | None = None
    """Id of the API key, which distinguishes keys with the same name. None if the service itself decided, or a
    request without a key.
    """


SERVICE = DecidedBy("service")


def record_result(context: Context, session: Session, study: StudyRow, now: datetime) -> None:
    """Record the result of a study that has ended by `now`. Then recommend it, or, if a person has to approve it,
    propose it. The caller has locked the study.
    """
    assert study.result is not None
    # Challenges and canaries recommend through their retune; a proposal of their own would bypass it.
    if study.system_study is not None:
        return
    row = lock_target(session, study, now)
    if _is_kept(context, session, row, study, now):
        return
    recommendation = add_proposal(session, row, study, study.result, now)
    if needs_approval(context, study) or row.is_pinned:
        notify(session, EventType.BEST_PROPOSED, recommendation, now)
        return
    report_confirmation(session, study, study.result, now)
    is_too_busy = study.result.verdict is Verdict.TOO_BUSY
    # A study that was extended replaces its own earlier result, whether it became faster or not. Speeds from a busy
    # machine replace no other study's.
    if (
        row.recommended is None
        or row.recommended.study_id == study.id
        or (not is_too_busy and _is_faster(recommendation, row.recommended))
    ):
        has_replaced = row.recommended is not None
        make_current(session, row, recommendation, now)
        record_decision(session, row, recommendation, DecisionAction.RECOMMENDED, SERVICE, None, now)
        if has_replaced:
            notify(session, EventType.BEST_REPLACED, recommendation, now)
    else:
        recommendation.state = RecommendationState.RETIRED
        reason = kept_reason(recommendation, row.recommended)
        record_decision(session, row, recommendation, DecisionAction.KEPT, SERVICE, reason, now)


def _is_kept(context: Context, session: Session, row: TuningTargetRow, study: StudyRow, now: datetime) -> bool:
    """Whether an extended study keeps its earlier confirmed result because its newest final comparison decided nothing
    against it.
    The recommendation of that result then stays, and the history says why. It gets the study's newest projection
    (prediction for a larger cluster), unless a person approves recommendations or has pinned it.
    """
    if study.result is None or study.result.newest_verdict is study.result.verdict:
        return False
    recommendation = study_recommendations.newest_of_study(session, study.id)
    if recommendation is None:
        return False
    reason = f"extended, and {_WHY_KEPT[study.result.newest_verdict]}"
    record_decision(session, row, recommendation, DecisionAction.INCONCLUSIVE, SERVICE, reason, now)
    answer, projection = recommendation.answer, study.result.projection
    if projection != answer.result.projection and not (needs_approval(context, study) or row.is_pinned):
        result = answer.result.model_copy(update={"projection": projection})
        recommendation.answer = answer.model_copy(update={"result": result})
    row.version += 1
    return True


def _is_faster(recommendation: RecommendationRow, recommended: RecommendationRow) -> bool:
    """Whether a new result replaces the recommendation of another study: because it is faster, or because the other
    study's machine was disturbed too much for an answer.
    """
    # Load only lowers a speed: where one of the two studies was disturbed, this errs towards the quiet one.
    was_too_busy = recommended.answer.result.verdict is Verdict.TOO_BUSY
    return was_too_busy or recommended_speed(recommendation) > recommended_speed(recommended)


def kept_reason(recommendation: RecommendationRow, recommended: RecommendationRow) -> str:
    """Reason in words why a new result does not replace the present recommendation. That one is called faster only
    where no disturbance of the new runs may have made them slower.
    """
    result = recommendation.answer.result
    if result.verdict is Verdict.TOO_BUSY:
        return "the machine was too busy"
    compared = result.final_comparison
    disturbed = (
        compared.disturbed_counted_runs if compared is not None and compared.pairs else result.disturbed_search_runs
    )
    if disturbed:
        return f"{recommended.id} was measured as faster; runs of this study were disturbed, so it may be faster than measured"
    return f"{recommended.id} is faster"


def needs_approval(context: Context, study: StudyRow) -> bool:
    """Whether the operator or the study's project requires a person's approval of every result."""
    return context.settings.requires_approval or study.project.requires_approval


def lock_target(session: Session, study: StudyRow, now: datetime) -> TuningTargetRow:
    """Row of the tuning target (model, workload, cluster) that a study measured, created if missing and locked until
    the transaction ends.
    """
    assert study.fingerprint is not None
    case = TuningTarget(study.spec.model, study.spec.workload, study.cluster)
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


def add_proposal(
    session: Session,
    row: TuningTargetRow,
    study: StudyRow,
    result: StudyResult,
    now: datetime,
    renewed: EarlierVerdict | None = None,
) -> RecommendationRow:
    """Record a study's result as a proposal, which is not yet recommended. The caller has locked the study and the
    target's row.
    """
    assert study.fingerprint is not None
    recommendation = RecommendationRow(
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
    session.add(recommendation)
    session.flush()
    record_decision(session, row, recommendation, DecisionAction.PROPOSED, SERVICE, None, now)
    row.version += 1
    return recommendation


def notify(
    session: Session, event: EventType, recommendation: RecommendationRow, now: datetime, **extra_data: Any
) -> None:
    """Notify webhooks that a recommendation has changed."""
    contender = recommendation.answer.result.best
    data = {
        "project_id": recommendation.project_id,
        "target_key": recommendation.target_key,
        "recommendation_id": recommendation.id,
        "description": contender.description,
        "tokens_per_s_per_gpu": contender.tokens_per_s_per_gpu,
        "verdict": recommendation.answer.result.verdict.value,
    }
    outbox.notify(
        session,
        project_id=recommendation.project_id,
        study_id=recommendation.study_id,
        kind=event,
        data=data | extra_data,
        now=now,
    )


def record_earlier_results(context: Context) -> None:
    """Record the results of studies that ended before the database stored recommendations."""
    with context.db.write() as session:
        for study in study_recommendations.studies_without_recommendation(session):
            if study.result is not None and study.fingerprint is not None:
                record_result(context, session, study, study.finished_at or context.now())


def project_of(context: Context, named: str | None) -> str:
    """Id of the project that a request names; if it names none, of the sender's own project.

    Raises:
        NotFound: the sender has no access to the project.
    """
    project_id = named or context.principal.home
    if not context.principal.sees(project_id):
        raise NotFound("unknown_project", f"project ({project_id}) is not one of the key's projects; leave it out")
    return project_id


def unknown_target(target_key: str) -> NotFound:
    """Error for a target key (model, workload, cluster and fingerprint) under which nothing was measured."""
    return NotFound(
        "unknown_best", f"target_key ({target_key}) has no recommendation; POST /v1/best:resolve starts a study"
    )


def make_current(
    session: Session, row: TuningTargetRow, recommendation: RecommendationRow, now: datetime, is_new: bool = True
) -> None:
    """Make a recommendation the current recommendation of its tuning target (model, workload, cluster). The caller
    has locked the target's row. `is_new` says whether the recommendation was measured just now.
    """
    if row.recommended is not None and row.recommended.id != recommendation.id:
        row.recommended.state = RecommendationState.RETIRED
    recommendation.state = RecommendationState.RECOMMENDED
    row.recommended, row.recommended_id, row.updated_at = recommendation, recommendation.id, now
    row.fingerprint_key = recommendation.answer.fingerprint.content_key()
    # A new measurement is fresh by definition; a rollback keeps the marks of the fingerprint it was measured on.
    if is_new:
        row.freshness, row.changed_fields, row.superseded_by = Freshness.FRESH, (), None
        row.stale_since, row.stale_announced_at, row.stale_announced_for = None, None, ()
    row.version += 1
    session.flush()


def record_decision(
    session: Session,
    row: TuningTargetRow,
    recommendation: RecommendationRow,
    action: DecisionAction,
    by: DecidedBy,
    note: str | None,
    now: datetime,
) -> None:
    """Append a decision to the history of a tuning target (model, workload, cluster). The caller has locked the
    target's row.
    """
    session.add(
        DecisionRow(
            project_id=row.project_id,
            target_key=row.target_key,
            recommendation_id=recommendation.id,
            action=action,
            by=by.name,
            key_id=by.key_id,
            note=note,
            created_at=now,
        )
    )


def recommended_speed(row: RecommendationRow) -> float:
    """Speed of the recommended configuration, in tokens per second of one rank."""
    return row.answer.result.best.tokens_per_s_per_gpu
