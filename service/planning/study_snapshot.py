"""A study as one transaction sees it: what its next step is decided from."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.study import StudyPhase, StudySpec, StudyState
from shardtune.api_schemas.studies.system_studies import SystemStudy
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.trial import Rejection, RunPurpose, TrialState
from shardtune.db.queries import leases, studies, trials
from shardtune.db.tables.studies import RunRow, StudyRow, TrialRow
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction.calibration import NOTHING_LEARNT, Calibrations
from shardtune.tuner.prediction.learning import ComparedRun
from shardtune.tuner.search.warm_start import WarmStart
from shardtune.tuner.verdict.final_comparison import ValidationRun
from shardtune.tuner.verdict.resume_check import ResumeRun


@dataclass(frozen=True)
class StudySnapshot:
    """A study at one version."""

    study_id: str
    version: int
    state: StudyState
    phase: StudyPhase
    spec: StudySpec
    cluster: Cluster
    baseline: TrialConfig | None
    model_summary: ModelSummary | None
    notes: tuple[str, ...]
    gpu_seconds: float
    started_at: datetime
    """From here its budget of time counts."""
    final_comparison: Finalists | None
    history: tuple[Observation, ...]
    rejected: tuple[Rejection, ...]
    fresh: tuple[ValidationRun, ...]
    """Complete runs of this final comparison, in order."""
    final_comparison_cost: tuple[int, float]
    """Runs and GPU-seconds of all final comparisons so far."""
    has_waiting_run: bool
    has_open_run: bool
    calibrations: Calibrations = NOTHING_LEARNT
    """What its fingerprint's runs have taught; the priors where nothing is asked."""
    hardware: MeasuredHardware | None = None
    """What a worker of that fingerprint has measured."""
    related: tuple[ComparedRun, ...] = ()
    """Runs of other studies on that fingerprint."""
    cores: int | None = None
    """Of the machine under that fingerprint; None where nothing is asked."""
    system_study: SystemStudy | None = None
    warm: WarmStart | None = None
    restarts: tuple[ResumeRun, ...] = ()
    """Runs that ask a winner to go on from its checkpoint."""
    has_resume_worker: bool = True
    """A live worker understands such a run."""

    @property
    def has_work(self) -> bool:
        """A run waits that some live worker can take."""
        return self.has_waiting_run and not self.is_stranded

    @property
    def is_stranded(self) -> bool:
        """What waits is a resume check, and no worker that is left understands it."""
        return (
            self.has_waiting_run
            and not self.has_resume_worker
            and any(run.state is TrialState.WAITING for run in self.restarts)
        )


def view(
    session: Session,
    study: StudyRow,
    rows: Sequence[TrialRow] | None = None,
    rejected: tuple[Rejection, ...] | None = None,
    confirming_s: float | None = None,
) -> StudySnapshot:
    """The study and its history as the transaction sees them.

    `rows`, `rejected`, `confirming_s`: its trials, what was rejected, and the GPU-seconds of its final comparisons, where these are known.
    """
    # Held until the end: runs find their trials among the session's rows only while somebody refers to these.
    rows = trials.of_study(session, study.id) if rows is None else rows
    opened = _open_states(session, study, rows)
    if rejected is None:
        rejected = tuple(row.value for row in trials.rejections(session, study.id))
    runs = sorted((run for row in rows for run in row.runs), key=lambda run: run.position)
    confirming = sum(run.purpose == RunPurpose.VALIDATION for run in runs)
    if confirming_s is None:
        confirming_s = leases.gpu_seconds_confirming(session, study.id) if confirming else 0.0
    return StudySnapshot(
        study_id=study.id,
        version=study.version,
        state=study.state,
        phase=study.phase,
        spec=study.spec,
        cluster=study.cluster,
        baseline=study.baseline,
        model_summary=study.model_summary,
        notes=tuple(study.notes),
        gpu_seconds=study.gpu_seconds,
        started_at=study.started_at or study.created_at,
        final_comparison=study.final_comparison,
        history=tuple(observation(row, study.comparison_round) for row in rows),
        rejected=rejected,
        fresh=tuple(fresh for run in runs if (fresh := _fresh(run, study.comparison_round)) is not None),
        final_comparison_cost=(confirming, confirming_s),
        restarts=tuple(_restart(run) for run in runs if run.purpose == RunPurpose.RESUME_CHECK),
        has_waiting_run=TrialState.WAITING in opened,
        has_open_run=bool(opened),
        system_study=study.system_study,
        warm=_warm(session, study.system_study),
    )


def _open_states(session: Session, study: StudyRow, rows: Sequence[TrialRow]) -> set[TrialState]:
    if study.phase is StudyPhase.MODEL_SUMMARY:
        # The only run that is no trial's.
        return leases.open_states(session, [study.id]).get(study.id, set())
    return {run.state for row in rows for run in row.runs if run.state.is_open}


def with_open_runs(seen: StudySnapshot, opened: Collection[TrialState]) -> StudySnapshot:
    """A view of the study's present version with what changes without a new version: which runs wait and run now."""
    return replace(seen, has_waiting_run=TrialState.WAITING in opened, has_open_run=bool(opened))


def _warm(session: Session, system_study: SystemStudy | None) -> WarmStart | None:
    if system_study is None or system_study.warm_study_id is None:
        return None
    earlier = studies.get(session, system_study.warm_study_id)
    if earlier is None:
        return None
    rows = trials.of_study(session, earlier.id)
    return WarmStart(
        earlier.id, earlier.fingerprint_key, tuple(observation(row, earlier.comparison_round) for row in rows)
    )


def _fresh(run: RunRow, comparison_round: int) -> ValidationRun | None:
    if not _counts(run, comparison_round) or run.trial is None or run.block is None or run.measurement is None:
        return None
    seen = run.measurement.conditions
    hosts = frozenset(seen.hosts if seen is not None else ())
    return ValidationRun(run.trial.number, run.block, run.worker_id or "", run.measurement.tokens_per_s_per_gpu, hosts)


def _restart(run: RunRow) -> ResumeRun:
    assert run.trial is not None
    return ResumeRun(run.trial.number, run.state, run.resume_check, run.failure)


def observation(row: TrialRow, comparison_round: int) -> Observation:
    """A trial as the tuner sees it; validation runs of earlier final comparisons do not count."""
    return Observation(
        number=row.number,
        config=row.config,
        origin=row.origin,
        state=row.state,
        measurement=next((run.measurement for run in row.runs if run.purpose == RunPurpose.SEARCH), None),
        failure=row.failure,
        validation_runs=tuple(
            run.measurement for run in row.runs if _counts(run, comparison_round) and run.measurement
        ),
    )


def _counts(run: RunRow, comparison_round: int) -> bool:
    return (
        run.purpose == RunPurpose.VALIDATION
        and run.comparison_round == comparison_round
        and run.state is TrialState.COMPLETE
    )
