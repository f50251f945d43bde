"""Tables of trials, rejected configurations, runs and attempts. Allowed state transitions are defined in
api_schemas.trials.trial and applied by the service."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.recipes import RecipeRun
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measure_plan import StepTimeRange
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.predictions import TrialPrediction
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.rehearsals import RehearsalReport
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.api_schemas.trials.trial import (
    OPEN_TRIAL_STATES,
    AttemptEnd,
    Rejection,
    RunPurpose,
    TrialOrigin,
    TrialReason,
    TrialState,
)
from shardtune.db.tables.base import Row
from shardtune.db.tables.fingerprints import FingerprintRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.types import Packed, Stored, among, words
from shardtune.db.tables.workers import WorkerRow

_RUNNING = text("state = 'running'")
_OPEN_TRACE = text(f"purpose = 'trace' AND {among('state', OPEN_TRIAL_STATES).text}")


class TrialRow(Row):
    """Table row of a trial: one configuration of a study; its executions are in `runs`."""

    __tablename__ = "trials"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey(StudyRow.id, ondelete="CASCADE"))
    number: Mapped[int]
    state: Mapped[TrialState]
    origin: Mapped[TrialOrigin] = mapped_column(words(TrialOrigin))
    config: Mapped[TrialConfig] = mapped_column(Stored(TrialConfig))
    config_key: Mapped[str] = mapped_column(String(32))
    prediction: Mapped[TrialPrediction | None] = mapped_column(Stored(TrialPrediction))
    """Prediction of the trial's memory and speed, made before it ran."""
    reason: Mapped[TrialReason | None] = mapped_column(Stored(TrialReason))
    """Reason why the sampler chose the trial's configuration."""
    failure: Mapped[Failure | None] = mapped_column(Stored(Failure))
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]

    runs: Mapped[list["RunRow"]] = relationship(back_populates="trial", order_by="RunRow.position")

    __table_args__ = (UniqueConstraint("study_id", "number"), UniqueConstraint("study_id", "config_key"))


class RejectionRow(Row):
    """Table row of a configuration that the memory gate rejected (predicted not to fit)."""

    __tablename__ = "rejections"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey(StudyRow.id, ondelete="CASCADE"))
    config_key: Mapped[str] = mapped_column(String(32))
    value: Mapped[Rejection] = mapped_column(Stored(Rejection))
    created_at: Mapped[datetime]

    __table_args__ = (UniqueConstraint("study_id", "config_key"),)


class RunRow(Row):
    """Table row of a run, which is what workers lease. A run summarises the model, measures a trial in the search or
    in the final comparison, checks that a trial resumes, compares recipes, rehearses a target, or profiles a trial."""

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey(StudyRow.id, ondelete="CASCADE"))
    trial_id: Mapped[int | None] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"), index=True)
    position: Mapped[int]
    """Position of the run among the runs of its study, in the order of creation."""
    purpose: Mapped[RunPurpose] = mapped_column(words(RunPurpose))
    comparison_round: Mapped[int] = mapped_column(default=0)
    """Number of the final comparison (paired runs that decide) to which a validation run belongs."""
    comparison_block: Mapped[int | None]
    """Number of the comparison block of a validation run. A block is a group of runs executed directly after each
    other, one of each compared configuration."""
    undecided_s: Mapped[StepTimeRange | None] = mapped_column(Stored(tuple[float, float]))
    """Range of step times in seconds within which the run's measurement must be precise, because they decide; None if
    no range needs more precision than others."""
    recipe: Mapped[RecipeRun | None] = mapped_column(Stored(RecipeRun))
    """Recipe (precision or optimizer) and configuration of a run that compares recipes; None for runs of other
    purposes."""
    rehearsed_config: Mapped[TrialConfig | None] = mapped_column(Stored(TrialConfig))
    """Configuration for the study's target (a larger cluster) that a rehearsal builds with fake tensors; None for
    runs of other purposes."""
    state: Mapped[TrialState]
    attempt: Mapped[int] = mapped_column(default=0)
    """Number of attempts at the run so far. While the run is in state `running`, the last of them is the current
    attempt."""
    worker_id: Mapped[str | None] = mapped_column(ForeignKey(WorkerRow.id))
    worker_session: Mapped[str | None] = mapped_column(String(64))
    host_id: Mapped[str | None] = mapped_column(String(128))
    """Id of the host on which the run's worker runs, if the worker shares it with other workers
    (`WorkerRow.host_id`)."""
    started_at: Mapped[datetime | None]
    """Start time of the current attempt."""
    lease_until: Mapped[datetime | None]
    lease_repeats: Mapped[int] = mapped_column(default=0, server_default="0")
    """Number of times that the current attempt's lease was sent again because its worker asked for work although it
    had the lease."""
    deadline_at: Mapped[datetime | None]
    """Time at which the service ends the current attempt, even if its worker renews the lease. None if it was not
    computed yet, because a service of an older release leased the run."""
    extended_at_progress: Mapped[Progress | None] = mapped_column(Stored(Progress))
    """Progress of the run at the last extension of its deadline; only progress that differs from it extends the
    deadline again."""
    fingerprint_key: Mapped[str | None] = mapped_column(ForeignKey(FingerprintRow.key))
    measured_for: Mapped[str | None] = mapped_column(String(32))
    """Id of the only project that may use the run's measurement, since its worker belongs to this project; None means
    all projects."""
    measurement: Mapped[Measurement | None] = mapped_column(Stored(Measurement))
    resume_check: Mapped[ResumeMeasurement | None] = mapped_column(Stored(ResumeMeasurement))
    rehearsal: Mapped[RehearsalReport | None] = mapped_column(Stored(RehearsalReport))
    diagnosis: Mapped[Diagnosis | None] = mapped_column(Packed(Diagnosis), deferred=True)
    """Diagnosis from a profiled run; loaded only on request."""
    failure: Mapped[Failure | None] = mapped_column(Stored(Failure))
    progress: Mapped[Progress | None] = mapped_column(Stored(Progress))
    log_tail: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]

    trial: Mapped[TrialRow | None] = relationship(back_populates="runs")
    attempts: Mapped[list["AttemptRow"]] = relationship(back_populates="run", order_by="AttemptRow.attempt")

    __table_args__ = (
        UniqueConstraint("study_id", "position"),
        Index("ix_runs_lease", "state", "lease_until"),
        # What was measured on a fingerprint, newest first: asked at every claim.
        Index("ix_runs_measured", "fingerprint_key", "purpose", "finished_at", "id"),
        # Ended studies of which a trace is to be run: asked at every claim.
        Index("ix_runs_open_traces", "study_id", sqlite_where=_OPEN_TRACE, postgresql_where=_OPEN_TRACE),
        # Two requests of one session racing each other cannot both be given work.
        Index(
            "uq_runs_session_running",
            "worker_session",
            unique=True,
            sqlite_where=_RUNNING,
            postgresql_where=_RUNNING,
        ),
    )


class AttemptRow(Row):
    """Table row of an attempt (one lease of a run), with its worker and its end; kept permanently."""

    __tablename__ = "attempts"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    worker_id: Mapped[str] = mapped_column(ForeignKey(WorkerRow.id))
    worker_session: Mapped[str] = mapped_column(String(64))
    started_at: Mapped[datetime]
    waited_before_s: Mapped[float | None]
    """Seconds for which earlier attempts at the run had waited for a quiet machine, as recorded when the attempt began.
    None if a service of an older release leased the attempt."""
    may_wait_s: Mapped[float | None]
    """Maximum seconds for which the attempt's lease let it wait for a quiet machine. None if a service of an older
    release leased the attempt."""
    finished_at: Mapped[datetime | None]
    end: Mapped[AttemptEnd | None] = mapped_column(words(AttemptEnd))
    """Reason why the attempt ended; None while it runs."""
    failure: Mapped[Failure | None] = mapped_column(Stored(Failure))
    gpu_seconds: Mapped[float | None]
    report_key: Mapped[str | None] = mapped_column(String(32))
    """Content key of the report that ended the attempt, by which a repetition of the same report is recognised."""

    run: Mapped[RunRow] = relationship(back_populates="attempts")
    worker: Mapped[WorkerRow] = relationship()

    def waited_s(self, progress: Progress | None, study_allows_s: float | None) -> float:
        """Seconds for which the attempt has waited for a quiet machine, as its worker says, but no more than its lease
        allowed.

        The run's `progress` counts the waits of all attempts at the run. `study_allows_s`: limit of the study, which
        applies if a service of an older release leased the attempt.
        """
        claimed_s = (progress.waited_s if progress is not None else None) or 0.0
        most_s = self.may_wait_s if self.may_wait_s is not None else study_allows_s
        return min(max(0.0, claimed_s - (self.waited_before_s or 0.0)), most_s or 0.0)

    # finished_at: what a project spent since midnight.
    __table_args__ = (UniqueConstraint("run_id", "attempt"), Index("ix_attempts_finished", "finished_at"))
