"""Tables of studies, trials, runs, attempts, workers, events and webhooks. Allowed state transitions are defined in
api_schemas.trials.trial and applied by the service."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from shardtune.api_schemas.access.keys import DEFAULT_PROJECT
from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint, Inventory, Offer
from shardtune.api_schemas.machines.host_partition import HostWait
from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.notifications.webhooks import DeliveryState
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.reasons import StudyReason
from shardtune.api_schemas.studies.recipes import RecipeRun
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import Contender, StudyResult
from shardtune.api_schemas.studies.study_state import OPEN_STUDY_STATES, StudyPhase, StudyPurpose, StudyState
from shardtune.api_schemas.studies.system_studies import SystemStudy
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Measurement, Progress, StepTimeRange
from shardtune.api_schemas.trials.predictions import TrialPrediction
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
from shardtune.db.tables.access import ProjectRow
from shardtune.db.tables.base import Row
from shardtune.db.tables.types import Packed, Stored, among, words

_RUNNING = text("state = 'running'")
_OPEN = among("state", OPEN_STUDY_STATES)
_OPEN_TRACE = text(f"purpose = 'trace' AND {among('state', OPEN_TRIAL_STATES).text}")
_OF_A_PROJECT, _OF_NONE = text("project_id IS NOT NULL"), text("project_id IS NULL")


class FingerprintRow(Row):
    """Table row of a fingerprint (hardware and software versions of a measurement), stored once and identified by its
    content."""

    __tablename__ = "fingerprints"

    key: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[Fingerprint] = mapped_column(Stored(Fingerprint))
    first_seen_at: Mapped[datetime]

    __table_args__ = (Index("ix_fingerprints_first_seen_at", "first_seen_at", "key"),)


class WorkerRow(Row):
    """Table row of a worker (a resource pool with a stable name) and its current session."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    """Name of the worker, unique within a project and among the workers that serve every project."""
    holder_id: Mapped[str | None] = mapped_column(String(32))
    """Id of the key holder whose keys may register under this name (`ApiKeyRow.holder_id`); None: the next holder to
    register."""
    session: Mapped[str] = mapped_column(String(64), unique=True)
    protocol_version: Mapped[int | None]
    """Protocol version in which the worker reads leases. None: unknown until the worker asks for work, since a release
    before this column registered it."""
    offer: Mapped[Offer] = mapped_column(Stored(Offer))
    """Part of the worker's inventory that is read for all workers at once."""
    inventory: Mapped[Inventory] = mapped_column(Stored(Inventory), deferred=True)
    """Complete inventory of the worker, loaded only on request: tens of kilobytes that no decision needs."""
    fingerprint_key: Mapped[str] = mapped_column(ForeignKey("fingerprints.key"))
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id"))
    """Project to whose studies the worker is limited; None: all projects."""
    registered_at: Mapped[datetime]
    seen_at: Mapped[datetime]
    """Time of the last request in the worker's session."""
    is_draining: Mapped[bool] = mapped_column(default=False)
    """Whether the worker gets no more runs; remains set after a restart of the worker."""
    set_aside: Mapped[str | None] = mapped_column(Text)
    """Reason why the service drains the worker by itself, until the worker restarts or a person resumes it."""
    condition: Mapped[str | None] = mapped_column(Text)
    """Problem of the worker found by a canary (speed check); None if none was found."""
    forgotten_at: Mapped[datetime | None]
    """Time at which the worker was forgotten, after which lists omit it until it registers again; its runs are kept."""
    host_id: Mapped[str | None] = mapped_column(String(128), index=True)
    """Id of the host that the worker shares with other workers of its project; None if it uses the machine alone."""
    host_wait: Mapped[HostWait | None] = mapped_column(Stored(HostWait))
    """Wait of the worker for its host: a run needs more of the host than is free, or the host is reserved for the next
    run of its pair."""

    __table_args__ = (
        Index(
            "uq_workers_project_name",
            "project_id",
            "name",
            unique=True,
            sqlite_where=_OF_A_PROJECT,
            postgresql_where=_OF_A_PROJECT,
        ),
        Index("uq_workers_shared_name", "name", unique=True, sqlite_where=_OF_NONE, postgresql_where=_OF_NONE),
    )


class StudyRow(Row):
    """Table row of a study. `version` increases with every change that the search depends on, and guards decisions made
    outside a transaction."""

    __tablename__ = "studies"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    project_id: Mapped[str] = mapped_column(
        ForeignKey("projects.id"), default=DEFAULT_PROJECT, server_default=DEFAULT_PROJECT
    )
    version: Mapped[int] = mapped_column(default=0)
    state: Mapped[StudyState]
    phase: Mapped[StudyPhase]
    spec: Mapped[StudySpec] = mapped_column(Stored(StudySpec))
    cluster: Mapped[Cluster] = mapped_column(Stored(Cluster))
    baseline: Mapped[TrialConfig | None] = mapped_column(Stored(TrialConfig))
    """Baseline of the study converted to Shardtune's configuration format."""
    notes: Mapped[tuple[str, ...]] = mapped_column(Stored(tuple[str, ...]))
    """Notes for readers of the result, from the study's creation on."""
    model_summary: Mapped[ModelSummary | None] = mapped_column(Stored(ModelSummary))
    fingerprint_key: Mapped[str | None] = mapped_column(ForeignKey("fingerprints.key"))
    """Key of the fingerprint (hardware and software) of the worker that took the first lease; only workers with the
    same fingerprint measure for this study."""
    gpu_seconds: Mapped[float] = mapped_column(default=0.0)
    parity_samples: Mapped[int | None]
    """Number of different samples in the recorded first steps of a study whose runs have short steps; None: all steps
    are whole."""
    comparison_round: Mapped[int] = mapped_column(default=0)
    """Number of the current final comparison (paired runs that decide), increased at each start; runs of earlier ones
    do not count."""
    final_comparison: Mapped[Finalists | None] = mapped_column(Stored(Finalists))
    """Finalists (trials to run again) of the current final comparison."""
    best_so_far: Mapped[Contender | None] = mapped_column(Stored(Contender))
    result: Mapped[StudyResult | None] = mapped_column(Stored(StudyResult))
    reason: Mapped[str | None] = mapped_column(Text)
    reason_code: Mapped[str | None] = mapped_column(String(32))
    """Code of the reason, a StudyReasonCode. Text: the next release may store a code that this one does not know."""
    reason_details: Mapped[str | None] = mapped_column(Text)
    resolve_key: Mapped[str | None] = mapped_column(String(32))
    """Key of the tuning target without the fingerprint, if the study was started because no configuration was known for
    the target."""
    purpose: Mapped[StudyPurpose] = mapped_column(
        words(StudyPurpose, 8), default=StudyPurpose.USER, server_default=StudyPurpose.USER.value
    )
    system_study: Mapped[SystemStudy | None] = mapped_column(Stored(SystemStudy))
    """Task of a study that the service started itself; None for a user's study."""
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    """Time at which the study could first run, from which its time budget counts; None if it waits for a worker."""
    finished_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    """Time of the study's deletion, after which lists omit it and nothing in it changes; its measurements are kept."""
    last_event: Mapped[int] = mapped_column(default=0)
    """Number of the study's newest event."""

    fingerprint: Mapped[FingerprintRow | None] = relationship()
    project: Mapped[ProjectRow] = relationship()

    def explain(self, reason: StudyReason | None) -> None:
        """Store the reason why the search stopped, why the study ended, or why it waits; None removes the stored one."""
        self.reason = reason.sentence if reason else None
        self.reason_code = reason.code.value if reason else None
        self.reason_details = reason.details if reason else None

    __table_args__ = (
        Index("ix_studies_state", "state", "created_at"),
        Index("ix_studies_project", "project_id", "created_at", "id"),
        # Of many platforms that ask at once, one starts the study.
        Index(
            "uq_studies_resolving",
            "project_id",
            "resolve_key",
            unique=True,
            sqlite_where=_OPEN,
            postgresql_where=_OPEN,
        ),
    )


class TrialRow(Row):
    """Table row of a trial: one configuration of a study; its executions are in `runs`."""

    __tablename__ = "trials"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    number: Mapped[int]
    state: Mapped[TrialState]
    origin: Mapped[TrialOrigin] = mapped_column(words(TrialOrigin))
    config: Mapped[TrialConfig] = mapped_column(Stored(TrialConfig))
    config_key: Mapped[str] = mapped_column(String(32))
    prediction: Mapped[TrialPrediction | None] = mapped_column(Stored(TrialPrediction))
    """Prediction made when the trial was created, before it ran."""
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
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    config_key: Mapped[str] = mapped_column(String(32))
    value: Mapped[Rejection] = mapped_column(Stored(Rejection))
    created_at: Mapped[datetime]

    __table_args__ = (UniqueConstraint("study_id", "config_key"),)


class RunRow(Row):
    """Table row of a run, the unit that workers lease: a model summary, a trial's search run, a validation run in a
    final comparison, a resume check, a run that compares recipes, a rehearsal, or a profiled run."""

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    trial_id: Mapped[int | None] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"), index=True)
    position: Mapped[int]
    """Position of the run in the order of creation within the study."""
    purpose: Mapped[RunPurpose] = mapped_column(words(RunPurpose))
    comparison_round: Mapped[int] = mapped_column(default=0)
    """Number of the final comparison that a validation run belongs to."""
    comparison_block: Mapped[int | None]
    """Number of the comparison block (runs executed directly after each other) of a validation run."""
    undecided_s: Mapped[StepTimeRange | None] = mapped_column(Stored(tuple[float, float]))
    """Range of step times in seconds that needs a precise measurement; None: no range."""
    recipe: Mapped[RecipeRun | None] = mapped_column(Stored(RecipeRun))
    """Recipe and configuration of a run that compares recipes; None for other runs."""
    rehearsed_config: Mapped[TrialConfig | None] = mapped_column(Stored(TrialConfig))
    """Configuration at the study's target that a rehearsal builds; None for other runs."""
    state: Mapped[TrialState]
    attempt: Mapped[int] = mapped_column(default=0)
    """Number of attempts at the run so far; while `state` is running, the number of the current attempt."""
    worker_id: Mapped[str | None] = mapped_column(ForeignKey("workers.id"))
    worker_session: Mapped[str | None] = mapped_column(String(64))
    host_id: Mapped[str | None] = mapped_column(String(128))
    """Id of the host of the run's worker, if shared with other workers (`WorkerRow.host_id`)."""
    started_at: Mapped[datetime | None]
    """Start time of the current attempt."""
    lease_until: Mapped[datetime | None]
    lease_repeats: Mapped[int] = mapped_column(default=0, server_default="0")
    """Number of times that the current attempt's lease was sent again because its worker asked for work."""
    deadline_at: Mapped[datetime | None]
    """Time at which the service ends the current attempt, even if its worker renews the lease; None: not computed yet,
    because a service of an older release leased the run."""
    extended_at_progress: Mapped[Progress | None] = mapped_column(Stored(Progress))
    """Progress that extended the deadline last; only other progress extends it again."""
    fingerprint_key: Mapped[str | None] = mapped_column(ForeignKey("fingerprints.key"))
    measured_for: Mapped[str | None] = mapped_column(String(32))
    """Id of the only project that may use the run's measurement, since its worker belongs to this project; None: all
    projects."""
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
    worker_id: Mapped[str] = mapped_column(ForeignKey("workers.id"))
    worker_session: Mapped[str] = mapped_column(String(64))
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    end: Mapped[AttemptEnd | None] = mapped_column(words(AttemptEnd))
    """Reason why the attempt ended; None while it runs."""
    failure: Mapped[Failure | None] = mapped_column(Stored(Failure))
    gpu_seconds: Mapped[float | None]
    report_key: Mapped[str | None] = mapped_column(String(32))
    """Content key of the report that ended the attempt, to recognise a repetition of the same report."""

    run: Mapped[RunRow] = relationship(back_populates="attempts")
    worker: Mapped[WorkerRow] = relationship()

    # finished_at: what a project spent since midnight.
    __table_args__ = (UniqueConstraint("run_id", "attempt"), Index("ix_attempts_finished", "finished_at"))


class EventRow(Row):
    """Table row of a study's event, written by db.outbox together with the change and never modified."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    number: Mapped[int]
    type: Mapped[EventType] = mapped_column(words(EventType, 32))
    created_at: Mapped[datetime]
    data: Mapped[dict[str, Any]] = mapped_column(Stored(dict[str, Any]))

    __table_args__ = (UniqueConstraint("study_id", "number"), Index("ix_events_created_at", "created_at"))


class WebhookRow(Row):
    """Table row of a webhook. Its secret is derived when needed (service.webhooks.secrets) and never stored."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    url: Mapped[str] = mapped_column(Text)
    events: Mapped[tuple[EventType, ...]] = mapped_column(Stored(tuple[EventType, ...]))
    """Types of events to send; empty: all types."""
    study_id: Mapped[str | None] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id"))
    """Project whose studies' events the webhook receives; None: all projects."""
    is_enabled: Mapped[bool]
    disabled_reason: Mapped[str | None] = mapped_column(Text)
    secret_version: Mapped[int]
    rotated_at: Mapped[datetime | None]
    created_at: Mapped[datetime]


class DeliveryRow(Row):
    """Table row of a message to one webhook, written together with its event."""

    __tablename__ = "deliveries"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    type: Mapped[str] = mapped_column(String(32))
    """Type of the message's event, or `webhook.test`."""
    body: Mapped[str] = mapped_column(Text)
    """Body of the message, exactly as signed and sent."""
    state: Mapped[DeliveryState] = mapped_column(words(DeliveryState))
    tries: Mapped[int]
    status: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    next_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]

    webhook: Mapped[WebhookRow] = relationship()

    __table_args__ = (
        Index("ix_deliveries_due", "state", "next_at"),
        Index("ix_deliveries_webhook", "webhook_id", "created_at"),
    )
