"""A study as one transaction sees it: what its next step is decided from."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.models import ModelProfile
from shardtune.api_schemas.promotion import PromotionField
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies import StudyPhase, StudySpec, StudyState
from shardtune.api_schemas.system_studies import SystemStudy
from shardtune.api_schemas.trials import Rejection, RunPurpose, TrialState
from shardtune.db.queries import leases, studies, trials
from shardtune.db.tables.studies import RunRow, StudyRow, TrialRow
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction.calibration import NOTHING_LEARNT, Calibrations
from shardtune.tuner.prediction.learning import ComparedRun
from shardtune.tuner.search.warm_start import WarmStart
from shardtune.tuner.verdict.promotion import FreshRun
from shardtune.tuner.verdict.restart import RestartRun


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
    profile: ModelProfile | None
    notes: tuple[str, ...]
    gpu_seconds: float
    started_at: datetime
    """From here its budget of time counts."""
    promotion: PromotionField | None
    history: tuple[Observation, ...]
    rejected: tuple[Rejection, ...]
    fresh: tuple[FreshRun, ...]
    """Complete runs of this promotion, in order."""
    promotion_cost: tuple[int, float]
    """Runs and GPU-seconds of all promotions so far."""
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
    restarts: tuple[RestartRun, ...] = ()
    """Runs that ask a winner to go on from its checkpoint."""
    has_restart_worker: bool = True
    """A live worker understands such a run."""

    @property
    def has_work(self) -> bool:
        """A run waits that some live worker can take."""
        return self.has_waiting_run and not self.is_stranded

    @property
    def is_stranded(self) -> bool:
        """What waits is a restart check, and no worker that is left understands it."""
        return (
            self.has_waiting_run
            and not self.has_restart_worker
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

    `rows`, `rejected`, `confirming_s`: its trials, what was refused, and the GPU-seconds of its promotions, where these are known.
    """
    # Held until the end: runs find their trials among the session's rows only while somebody refers to these.
    rows = trials.of_study(session, study.id) if rows is None else rows
    opened = _open_states(session, study, rows)
    if rejected is None:
        rejected = tuple(row.value for row in trials.rejections(session, study.id))
    runs = sorted((run for row in rows for run in row.runs), key=lambda run: run.position)
    confirming = sum(run.purpose == RunPurpose.CONFIRM for run in runs)
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
        profile=study.profile,
        notes=tuple(study.notes),
        gpu_seconds=study.gpu_seconds,
        started_at=study.started_at or study.created_at,
        promotion=study.promotion,
        history=tuple(observation(row, study.promotion_round) for row in rows),
        rejected=rejected,
        fresh=tuple(fresh for run in runs if (fresh := _fresh(run, study.promotion_round)) is not None),
        promotion_cost=(confirming, confirming_s),
        restarts=tuple(_restart(run) for run in runs if run.purpose == RunPurpose.RESTART),
        has_waiting_run=TrialState.WAITING in opened,
        has_open_run=bool(opened),
        system_study=study.system_study,
        warm=_warm(session, study.system_study),
    )


def _open_states(session: Session, study: StudyRow, rows: Sequence[TrialRow]) -> set[TrialState]:
    if study.phase is StudyPhase.PROFILE:
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
        earlier.id, earlier.fingerprint_key, tuple(observation(row, earlier.promotion_round) for row in rows)
    )


def _fresh(run: RunRow, promotion_round: int) -> FreshRun | None:
    if not _counts(run, promotion_round) or run.trial is None or run.block is None or run.measurement is None:
        return None
    seen = run.measurement.conditions
    hosts = frozenset(seen.hosts if seen is not None else ())
    return FreshRun(run.trial.number, run.block, run.worker_id or "", run.measurement.tokens_per_s_per_gpu, hosts)


def _restart(run: RunRow) -> RestartRun:
    assert run.trial is not None
    return RestartRun(run.trial.number, run.state, run.restart, run.failure)


def observation(row: TrialRow, promotion_round: int) -> Observation:
    """A trial as the tuner sees it; fresh runs of earlier promotions do not count."""
    return Observation(
        number=row.number,
        config=row.config,
        origin=row.origin,
        state=row.state,
        measurement=next((run.measurement for run in row.runs if run.purpose == RunPurpose.SEARCH), None),
        failure=row.failure,
        confirmations=tuple(run.measurement for run in row.runs if _counts(run, promotion_round) and run.measurement),
    )


def _counts(run: RunRow, promotion_round: int) -> bool:
    return (
        run.purpose == RunPurpose.CONFIRM
        and run.promotion_round == promotion_round
        and run.state is TrialState.COMPLETE
    )
