"""Create system studies: studies that the service itself starts, for retunes and canaries. They run on given workers,
and count against no user's quota.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.retuning.retunes import RetuneCause
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyPurpose, StudyState
from shardtune.api_schemas.studies.system_studies import SystemStudy, SystemStudyKind
from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.queries import leases, studies
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.db.tables.fingerprints import FingerprintRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.http.errors import Conflict
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility, offered_models, protocol_limits, registry


def add_system_study(
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
    """Add a system study, which the service creates itself: a challenge, a search or a canary. It measures the tuning
    target (model, workload, cluster) of an earlier study again, on workers with a given fingerprint. Its baseline is
    the recommended configuration.

    Returns the existing study with this id if there is one, so that a repetition after a crash or by another replica
    adds no second study.
    """
    existing_study = studies.get(session, study_id)
    if existing_study is not None:
        return existing_study
    model_summary = _valid_model_summary(session, earlier, fingerprint_key)
    study = StudyRow(
        id=study_id,
        project_id=earlier.project_id,
        purpose=StudyPurpose.CANARY if system_study.kind == SystemStudyKind.CANARY else StudyPurpose.RETUNE,
        state=StudyState.RUNNING,
        phase=StudyPhase.MODEL_SUMMARY if model_summary is None else StudyPhase.SEARCH,
        spec=_study_spec(earlier, incumbent, system_study, budget),
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


def search_behind(session: Session, recommendation: RecommendationRow) -> StudyRow:
    """Study whose search found a recommendation's configuration. Challenge studies are skipped, because they only
    measured this configuration again.
    """
    renewed = recommendation.answer.renewed
    study = studies.get(session, renewed.study_id if renewed is not None else recommendation.study_id)
    while study is not None and study.system_study is not None and study.system_study.warm_study_id is not None:
        if study.system_study.kind == SystemStudyKind.SEARCH:
            break
        study = studies.get(session, study.system_study.warm_study_id)
    assert study is not None
    return study


def suitable_workers(
    context: Context, session: Session, project_id: str, model: ModelSpec, cluster: Cluster
) -> list[WorkerRow]:
    """Live workers that could measure a tuning target (model, workload, cluster), sorted by name."""
    return [
        worker
        for worker in registry.live_workers(context, session, project_id)
        if not worker.is_draining
        and compatibility.has_hardware(worker.offer, cluster)
        and offered_models.allows_model(worker.offer, model)
    ]


def choose_worker(context: Context, session: Session, row: TuningTargetRow, cause: RetuneCause) -> WorkerRow:
    """Choose the worker that runs the incumbent (recommended configuration) against other configurations. After a
    change of hardware or software, workers that have changed are preferred; of several workers, the one registered
    last.

    Raises:
        Conflict: no live worker could run the challenge.
    """
    assert row.recommended is not None
    answer, measured = row.recommended.answer, row.recommended.study
    live_workers = suitable_workers(context, session, row.project_id, answer.model, answer.cluster)
    if not live_workers:
        raise Conflict("no_worker", "no live worker could measure it")
    config = answer.result.best.config
    reasons = [
        protocol_limits.why_not_repeatable(answer.workload, config, worker.protocol_version) for worker in live_workers
    ]
    readers = [worker for worker, reason in zip(live_workers, reasons, strict=True) if reason is None]
    if not readers:
        raise Conflict("no_worker", f"no live worker can read its runs: {live_workers[0].name} {reasons[0]}")
    has_changed = cause == RetuneCause.FINGERPRINT
    preferred = [worker for worker in readers if bool(compatibility.changed_fields(worker, measured)) == has_changed]
    return max(preferred or readers, key=lambda worker: (worker.registered_at, worker.name))


def _study_spec(
    earlier: StudyRow, incumbent: TrialConfig | None, system_study: SystemStudy, budget: Budget
) -> StudySpec:
    changes: dict[str, Any] = {"cluster": earlier.cluster, "baseline": incumbent, "budget": budget}
    if system_study.kind != SystemStudyKind.SEARCH and incumbent is not None:
        # Parity needs a second backend only among those that run in this study.
        backends = {config.backend for config in (incumbent, *system_study.challengers)}
        ordered = tuple(sorted(backends))
        changes["space"] = earlier.spec.space.model_copy(update={"backends": ordered})
    return earlier.spec.model_copy(update=changes)


def _valid_model_summary(session: Session, earlier: StudyRow, fingerprint_key: str) -> ModelSummary | None:
    """Model summary (sizes and FLOPs of the model) of the earlier study, if it is valid on this fingerprint (hardware
    and software versions); None if a worker must create a new one.
    """
    if earlier.fingerprint is None:
        return None
    if earlier.fingerprint_key == fingerprint_key:
        return earlier.model_summary
    fingerprint = session.get(FingerprintRow, fingerprint_key)
    assert fingerprint is not None
    measured_fingerprint = earlier.fingerprint.value
    # Only torch and transformers determine parameters and FLOPs; other changes of the fingerprint leave the summary
    # valid.
    is_same = (measured_fingerprint.torch, measured_fingerprint.transformers) == (
        fingerprint.value.torch,
        fingerprint.value.transformers,
    )
    return earlier.model_summary if is_same else None
