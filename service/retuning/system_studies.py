"""Make the studies that the service itself wants. They run where and what they are told, and under no user's quota."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.retuning.retunes import RetuneCause
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Budget, StudyPhase, StudyPurpose, StudySpec, StudyState
from shardtune.api_schemas.studies.system_studies import SystemStudy, SystemStudyKind
from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.queries import leases, studies
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.db.tables.studies import FingerprintRow, StudyRow, WorkerRow
from shardtune.service.http.errors import Conflict
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility, registry


def add(
    session: Session,
    study_id: str,
    earlier: StudyRow,
    fingerprint_key: str,
    incumbent: TrialConfig | None,
    system_study: SystemStudy,
    budget: Budget,
    notes: Sequence[str],
    now: datetime,
) -> StudyRow:
    """A study of an earlier one's case for workers of a fingerprint, with the incumbent as its baseline.

    The study of that name where there is one already: asking again, after a crash or from another replica, adds none.
    """
    known = studies.get(session, study_id)
    if known is not None:
        return known
    model_summary = _model_summary(session, earlier, fingerprint_key)
    study = StudyRow(
        id=study_id,
        project_id=earlier.project_id,
        purpose=StudyPurpose.CANARY if system_study.kind == SystemStudyKind.CANARY else StudyPurpose.RETUNE,
        state=StudyState.RUNNING,
        phase=StudyPhase.MODEL_SUMMARY if model_summary is None else StudyPhase.SEARCH,
        spec=_spec(earlier, incumbent, system_study, budget),
        cluster=earlier.cluster,
        baseline=incumbent,
        model_summary=model_summary,
        fingerprint_key=fingerprint_key,
        notes=tuple(notes),
        system_study=system_study,
        created_at=now,
        started_at=now,
    )
    session.add(study)
    session.flush()
    if model_summary is None:
        leases.add_run(session, study, None, RunPurpose.MODEL_SUMMARY, now)
    return study


def origin(session: Session, found: RecommendationRow) -> StudyRow:
    """The search behind a recommendation: challenges only measured again what it had found."""
    renewed = found.answer.renewed
    study = studies.get(session, renewed.study_id if renewed is not None else found.study_id)
    while study is not None and study.system_study is not None and study.system_study.warm_study_id is not None:
        if study.system_study.kind == SystemStudyKind.SEARCH:
            break
        study = studies.get(session, study.system_study.warm_study_id)
    assert study is not None
    return study


def able(context: Context, session: Session, project_id: str, model: ModelSpec, cluster: Cluster) -> list[WorkerRow]:
    """Live workers that could measure a case, by name."""
    return [
        worker
        for worker in registry.live(context, session, project_id)
        if not worker.is_draining
        and compatibility.offers(worker.offer, cluster)
        and compatibility.has_model(worker.offer, model)
    ]


def worker_for(context: Context, session: Session, row: TuningTargetRow, cause: RetuneCause) -> WorkerRow:
    """Whose fingerprint the incumbent is challenged on: after a change, that of the worker which changed last.

    Raises:
        Conflict: no live worker could run it.
    """
    assert row.serving is not None
    answer, measured = row.serving.answer, row.serving.study
    found = able(context, session, row.project_id, answer.model, answer.cluster)
    if not found:
        raise Conflict("no_worker", "no live worker could measure it")
    has_changed = cause == RetuneCause.FINGERPRINT
    wanted = [worker for worker in found if bool(compatibility.changed_fields(worker, measured)) == has_changed]
    return max(wanted or found, key=lambda worker: (worker.registered_at, worker.name))


def _spec(earlier: StudyRow, incumbent: TrialConfig | None, system_study: SystemStudy, budget: Budget) -> StudySpec:
    changes: dict[str, Any] = {"cluster": earlier.cluster, "baseline": incumbent, "budget": budget}
    if system_study.kind != SystemStudyKind.SEARCH and incumbent is not None:
        # Only what runs can be asked to confirm what the others train.
        backends = {config.backend for config in (incumbent, *system_study.challengers)}
        ordered = tuple(sorted(backends))
        changes["space"] = earlier.spec.space.model_copy(update={"backends": ordered})
    return earlier.spec.model_copy(update=changes)


def _model_summary(session: Session, earlier: StudyRow, fingerprint_key: str) -> ModelSummary | None:
    """The model is counted again only where something that counts it has changed."""
    if earlier.fingerprint is None:
        return None
    if earlier.fingerprint_key == fingerprint_key:
        return earlier.model_summary
    now = session.get(FingerprintRow, fingerprint_key)
    assert now is not None
    was = earlier.fingerprint.value
    is_same = (was.torch, was.transformers) == (now.value.torch, now.value.transformers)
    return earlier.model_summary if is_same else None
