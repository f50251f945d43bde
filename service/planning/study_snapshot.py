"""Snapshot of a study as one transaction reads it: the input for planning the study's next step."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.studies.system_studies import SystemStudy
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.trial import Rejection, RunPurpose, TrialState
from shardtune.db.queries import costs, leases, studies, trials
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow, TrialRow
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction.calibration import NO_CALIBRATIONS, Calibrations
from shardtune.tuner.prediction.learning import ComparedRun
from shardtune.tuner.projection.target_rehearsals import RehearsalRun
from shardtune.tuner.search.warm_start import WarmStart
from shardtune.tuner.verdict import kept_answer
from shardtune.tuner.verdict.comparison_blocks import ValidationRun
from shardtune.tuner.verdict.recipes.comparison import RecipeObservation
from shardtune.tuner.verdict.run_load import RunLoad
from shardtune.tuner.verdict.whole_steps import WHOLE_STEP_BLOCK
from shardtune.tuner.verdict.winner.resume_check import ResumeRun
from shardtune.tuner.verdict.winner.sustained_run import (
    OBSTACLE_REMEDIES,
    OBSTACLE_TEXTS,
    SustainedObstacle,
    SustainedRun,
)


@dataclass(frozen=True)
class StudySnapshot:
    """State of a study at one version, with its trials and runs, read once for planning the study's next step."""

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
    """Time at which the study's time budget begins to count."""
    final_comparison: Finalists | None
    history: tuple[Observation, ...]
    rejected: tuple[Rejection, ...]
    validation_runs: tuple[ValidationRun, ...]
    """Complete validation runs of the present final comparison (paired runs that decide), in order."""
    final_comparison_cost: tuple[int, float]
    """Number of runs, and number of GPU-seconds, of all final comparisons (paired runs that decide) of the study so
    far.
    """
    has_waiting_run: bool
    has_open_run: bool
    earlier_result: StudyResult | None = None
    """Result of an earlier final comparison (paired runs that decide), if the study was extended."""
    comparison_number: int = 0
    """Number of the present final comparison (paired runs that decide); runs of earlier comparisons do not count."""
    calibrations: Calibrations = NO_CALIBRATIONS
    """Corrections of the predictor that were fitted to runs on the study's fingerprint (hardware and software
    versions). They are left out if the next step needs no sampler.
    """
    hardware: MeasuredHardware | None = None
    """Hardware rates (such as matmul and link speeds) that a worker with the study's fingerprint (hardware and
    software versions) has measured.
    """
    other_studies_runs: tuple[ComparedRun, ...] = ()
    """Runs of other studies that were measured on the study's fingerprint (hardware and software versions)."""
    cpu_count: int | None = None
    """Number of CPU cores of the machine with the study's fingerprint (hardware and software versions). None if the
    next step needs no sampler.
    """
    system_study: SystemStudy | None = None
    warm_start: WarmStart | None = None
    resume_runs: tuple[ResumeRun, ...] = ()
    """Resume checks of the study (train, save, resume from the checkpoint), in order of time."""
    sustained_runs: tuple[SustainedRun, ...] = ()
    """Sustained runs of the study (long runs after the verdict), in order of time. Failed ones from before an extension
    are left out, so that the extended study tries again."""
    recipe_runs: tuple[RecipeObservation, ...] = ()
    """Runs that compare other recipes (numerical formats and optimizers) with the study's answer, in order of time.
    Runs from before the present final comparison are left out.
    """
    rehearsal_runs: tuple[RehearsalRun, ...] = ()
    """Rehearsals of configurations that are projected to be fast on the target, in order of time. A rehearsal runs
    the first steps at the target's number of ranks without timing them.
    """
    has_resume_worker: bool = True
    """Whether a live worker supports resume checks (train, save, resume from the checkpoint)."""
    sustained_obstacle: SustainedObstacle | None = None
    """Circumstance that prevents the sustained run (long run after the verdict) now, so that the study completes without
    it. Unless it is `NO_WORKER`, it prevents the other optional runs, too."""
    has_recipe_worker: bool = True
    """Whether a live worker supports runs that compare recipes (numerical formats and optimizers)."""
    has_rehearsal_worker: bool = True
    """Whether a live worker supports rehearsals (untimed first steps of a projected configuration)."""

    def answer(self, newest: StudyResult) -> StudyResult:
        """Return the result that is the study's answer once its newest final comparison has ended with `newest`. It is
        the result that an earlier comparison confirmed, if the newest one decided nothing and the trials of the earlier
        one are still feasible; else the newest.
        """
        earlier = self.earlier_result
        if earlier is None or not kept_answer.stands(earlier, newest):
            return newest
        # Later runs may have shown that a trial does not fit, or trains something else.
        feasible = {obs.number for obs in self.history if obs.state is TrialState.COMPLETE}
        return earlier if {earlier.best.trial_number, earlier.baseline.trial_number} <= feasible else newest

    @property
    def why_no_optional_runs(self) -> str | None:
        """Reason why no optional run may follow a known answer, because the sustained run (long run after the verdict)
        must not delay it; None if one may.
        """
        # Older workers may lack this kind of run and know the others.
        obstacle = self.sustained_obstacle
        if obstacle is None or obstacle is SustainedObstacle.NO_WORKER:
            return None
        remedy = OBSTACLE_REMEDIES.get(obstacle)
        return OBSTACLE_TEXTS[obstacle] if remedy is None else f"{OBSTACLE_TEXTS[obstacle]}; {remedy}"

    def without_open_optional_runs(self) -> "StudySnapshot":
        """Copy of the snapshot in which the study's unfinished optional runs do not exist. The study must have no other
        unfinished run.
        """
        return replace(
            self,
            sustained_runs=tuple(run for run in self.sustained_runs if not run.state.is_open),
            recipe_runs=tuple(run for run in self.recipe_runs if not run.state.is_open),
            rehearsal_runs=tuple(run for run in self.rehearsal_runs if not run.state.is_open),
            has_waiting_run=False,
            has_open_run=False,
        )

    @property
    def has_work(self) -> bool:
        """Whether the study has a waiting run that a live worker can execute."""
        return self.has_waiting_run and not self.is_stranded

    @property
    def is_stranded(self) -> bool:
        """Whether the study's waiting run is of a kind that no live worker supports: a resume check (train, save,
        resume), a sustained run, a comparison of recipes (numerical formats and optimizers), or a rehearsal (untimed
        first steps).
        """
        return self.has_waiting_run and any(not self.can_run(purpose) for purpose in self.waiting_purposes)

    def can_run(self, purpose: RunPurpose) -> bool:
        """Return whether a run of a purpose that older workers do not support can take place now."""
        is_possible = {
            RunPurpose.RESUME_CHECK: self.has_resume_worker,
            RunPurpose.SUSTAINED: self.sustained_obstacle is None,
            RunPurpose.RECIPE: self.has_recipe_worker and self.why_no_optional_runs is None,
            RunPurpose.REHEARSAL: self.has_rehearsal_worker and self.why_no_optional_runs is None,
        }
        return is_possible[purpose]

    @property
    def waiting_purposes(self) -> frozenset[RunPurpose]:
        """Purposes of the study's waiting runs, as far as they are purposes that older workers do not support."""
        waiting = (
            (RunPurpose.RESUME_CHECK, any(run.state is TrialState.WAITING for run in self.resume_runs)),
            (RunPurpose.SUSTAINED, any(run.state is TrialState.WAITING for run in self.sustained_runs)),
            (RunPurpose.RECIPE, any(run.state is TrialState.WAITING for run in self.recipe_runs)),
            (RunPurpose.REHEARSAL, any(run.state is TrialState.WAITING for run in self.rehearsal_runs)),
        )
        return frozenset(purpose for purpose, is_waiting in waiting if is_waiting)


def read_study(
    session: Session,
    study: StudyRow,
    rows: Sequence[TrialRow] | None = None,
    rejected: tuple[Rejection, ...] | None = None,
    validation_gpu_seconds: float | None = None,
) -> StudySnapshot:
    """Read a study and its history in the caller's transaction.

    The caller can pass what it has read already: `rows` (the study's trials), `rejected` (its rejected
    configurations) and `validation_gpu_seconds` (GPU-seconds of its final comparisons).
    """
    # Keep a reference until the end: SQLAlchemy's identity map is weak, and runs find their trials there.
    rows = trials.of_study(session, study.id) if rows is None else rows
    open_states_ = _open_states(session, study, rows)
    if rejected is None:
        rejected = tuple(row.value for row in trials.rejections(session, study.id))
    runs = sorted((run for row in rows for run in row.runs), key=lambda run: run.position)
    validation_count = sum(run.purpose == RunPurpose.VALIDATION for run in runs)
    if validation_gpu_seconds is None:
        validation_gpu_seconds = costs.gpu_seconds_of_validation_runs(session, study.id) if validation_count else 0.0
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
        validation_runs=tuple(
            validation_run
            for run in runs
            if (validation_run := _validation_run(run, study.comparison_round)) is not None
        ),
        final_comparison_cost=(validation_count, validation_gpu_seconds),
        resume_runs=tuple(_resume_run(run) for run in runs if run.purpose == RunPurpose.RESUME_CHECK),
        sustained_runs=tuple(
            _sustained_run(run) for run in runs if run.purpose == RunPurpose.SUSTAINED and not run.comparison_round
        ),
        recipe_runs=tuple(
            _recipe_run(run)
            for run in runs
            if run.purpose == RunPurpose.RECIPE and run.comparison_round == study.comparison_round
        ),
        rehearsal_runs=tuple(_rehearsal_run(run) for run in runs if run.purpose == RunPurpose.REHEARSAL),
        has_waiting_run=TrialState.WAITING in open_states_,
        has_open_run=bool(open_states_),
        earlier_result=study.result,
        comparison_number=study.comparison_round,
        system_study=study.system_study,
        warm_start=_read_warm_start(session, study.system_study),
    )


def _open_states(session: Session, study: StudyRow, rows: Sequence[TrialRow]) -> set[TrialState]:
    if study.phase is StudyPhase.MODEL_SUMMARY:
        # The model summary is the only run without a trial.
        return leases.open_states(session, [study.id]).get(study.id, set())
    return {run.state for row in rows for run in row.runs if run.state.is_open}


def with_open_runs(snapshot: StudySnapshot, open_states: Collection[TrialState]) -> StudySnapshot:
    """Copy of a study's snapshot with the present states of its unfinished runs, which can change while the study's
    version stays the same.
    """
    return replace(snapshot, has_waiting_run=TrialState.WAITING in open_states, has_open_run=bool(open_states))


def _read_warm_start(session: Session, system_study: SystemStudy | None) -> WarmStart | None:
    if system_study is None or system_study.warm_study_id is None:
        return None
    earlier_study = studies.get(session, system_study.warm_study_id)
    # A study may have been deleted since; the search then starts without its trials.
    if earlier_study is None:
        return None
    rows = trials.of_study(session, earlier_study.id)
    return WarmStart(
        earlier_study.id,
        earlier_study.fingerprint_key,
        tuple(observation(row, earlier_study.comparison_round) for row in rows),
    )


def _validation_run(run: RunRow, comparison_round: int) -> ValidationRun | None:
    if (
        not _is_current_validation(run, comparison_round)
        or run.trial is None
        or run.comparison_block in (None, WHOLE_STEP_BLOCK)
        or run.measurement is None
    ):
        return None
    assert run.comparison_block is not None
    conditions = run.measurement.conditions
    hosts = frozenset(conditions.hosts if conditions is not None else ())
    return ValidationRun(
        run.trial.number,
        run.comparison_block,
        run.worker_id or "",
        run.measurement.tokens_per_s_per_gpu,
        hosts,
        RunLoad.of(run.measurement),
    )


def _resume_run(run: RunRow) -> ResumeRun:
    assert run.trial is not None
    return ResumeRun(run.trial.number, run.state, run.resume_check, run.failure)


def _sustained_run(run: RunRow) -> SustainedRun:
    assert run.trial is not None
    return SustainedRun(run.trial.number, run.state, run.measurement, run.failure, run.worker_id or "")


def _rehearsal_run(run: RunRow) -> RehearsalRun:
    assert run.trial is not None and run.rehearsed_config is not None
    return RehearsalRun(run.trial.number, run.rehearsed_config, run.state, run.rehearsal, run.failure)


def _recipe_run(run: RunRow) -> RecipeObservation:
    assert run.trial is not None and run.recipe is not None and run.comparison_block is not None
    return RecipeObservation(
        run.trial.number, run.recipe, run.comparison_block, run.state, run.worker_id or "", run.measurement, run.failure
    )


def observation(row: TrialRow, comparison_round: int) -> Observation:
    """Convert a trial into the form that the tuner reads; validation runs of earlier final comparisons (paired runs
    that decide) are left out.
    """
    # A comparison that begins anew raises `comparison_round`: runs against a candidate that has left prove nothing for
    # the next.
    validation = [run for run in row.runs if _is_current_validation(run, comparison_round)]
    return Observation(
        number=row.number,
        config=row.config,
        origin=row.origin,
        state=row.state,
        measurement=next((run.measurement for run in row.runs if run.purpose == RunPurpose.SEARCH), None),
        failure=row.failure,
        validation_runs=tuple(
            run.measurement
            for run in validation
            if run.measurement is not None and run.comparison_block != WHOLE_STEP_BLOCK
        ),
        whole_step_run=next((run.measurement for run in validation if run.comparison_block == WHOLE_STEP_BLOCK), None),
    )


def _is_current_validation(run: RunRow, comparison_round: int) -> bool:
    return (
        run.purpose == RunPurpose.VALIDATION
        and run.comparison_round == comparison_round
        and run.state is TrialState.COMPLETE
    )
