"""Tables of studies, trials, runs, attempts, workers, events and webhooks. Allowed moves of states are in
api_schemas.trials.trial; the service moves them."""

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
from shardtune.api_schemas.studies.study import (
    OPEN_STUDY_STATES,
    Contender,
    StudyPhase,
    StudyPurpose,
    StudyResult,
    StudySpec,
    StudyState,
)
from shardtune.api_schemas.studies.system_studies import SystemStudy
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Measurement, Progress, StepTimeRange
from shardtune.api_schemas.trials.predictions import TrialPrediction
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
    """Hardware and software of a measurement, stored once and named by its content."""

    __tablename__ = "fingerprints"

    key: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[Fingerprint] = mapped_column(Stored(Fingerprint))
    first_seen_at: Mapped[datetime]

    __table_args__ = (Index("ix_fingerprints_first_seen_at", "first_seen_at", "key"),)


class WorkerRow(Row):
    """Worker (a resource pool with a stable name) in its present session."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    """Name, unique in a project, and among the workers that serve every project."""
    holder_id: Mapped[str | None] = mapped_column(String(32))
    """Holder whose keys may register under the name (`ApiKeyRow.holder_id`); None: the next one's."""
    session: Mapped[str] = mapped_column(String(64), unique=True)
    offer: Mapped[Offer] = mapped_column(Stored(Offer))
    """Part of the inventory that is read of all workers."""
    inventory: Mapped[Inventory] = mapped_column(Stored(Inventory), deferred=True)
    """Complete inventory, read where it is asked for: tens of kilobytes that no decision needs."""
    fingerprint_key: Mapped[str] = mapped_column(ForeignKey("fingerprints.key"))
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id"))
    """Project whose studies alone it runs; None: every project's."""
    registered_at: Mapped[datetime]
    seen_at: Mapped[datetime]
    """Time of the last request of this session."""
    is_draining: Mapped[bool] = mapped_column(default=False)
    """Whether it gets no more work; survives a restart of the worker."""
    condition: Mapped[str | None] = mapped_column(Text)
    """Problem that a canary found with it; None: nothing."""
    forgotten_at: Mapped[datetime | None]
    """Time at which it was forgotten: no list shows it until it registers again; its runs stay its own."""
    host_id: Mapped[str | None] = mapped_column(String(128), index=True)
    """Host that it shares with other workers of its project; None: it has its machine alone."""
    host_wait: Mapped[HostWait | None] = mapped_column("host_wait", Stored(HostWait))
    """Wait for its host: a run needs more of the host than is free, or the host is kept for the next run of its
    pair."""

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
    """Study. `version` grows with every change that the search depends on, and guards decisions made outside a
    transaction."""

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
    """Baseline of the spec as a configuration of ours."""
    notes: Mapped[tuple[str, ...]] = mapped_column(Stored(tuple[str, ...]))
    """Notes for the reader of the result, from the creation on."""
    model_summary: Mapped[ModelSummary | None] = mapped_column(Stored(ModelSummary))
    fingerprint_key: Mapped[str | None] = mapped_column(ForeignKey("fingerprints.key"))
    """Fingerprint of the worker that took the first lease; only equal ones measure for this study."""
    gpu_seconds: Mapped[float] = mapped_column(default=0.0)
    comparison_round: Mapped[int] = mapped_column(default=0)
    """Number of the final comparison; it grows with every one that begins, and runs of earlier ones do not count."""
    final_comparison: Mapped[Finalists | None] = mapped_column(Stored(Finalists))
    """Finalists of the present final comparison."""
    best_so_far: Mapped[Contender | None] = mapped_column(Stored(Contender))
    result: Mapped[StudyResult | None] = mapped_column(Stored(StudyResult))
    reason: Mapped[str | None] = mapped_column(Text)
    resolve_key: Mapped[str | None] = mapped_column(String(32))
    """Key of the tuning target without the fingerprint, of a study that was started because nothing was known."""
    purpose: Mapped[StudyPurpose] = mapped_column(
        words(StudyPurpose, 8), default=StudyPurpose.USER, server_default=StudyPurpose.USER.value
    )
    system_study: Mapped[SystemStudy | None] = mapped_column(Stored(SystemStudy))
    """Task of a study of the service itself; None: a user asked for it."""
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    """Time at which it could first run: its budget of time counts from here. None: it waits for a worker."""
    finished_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    """Time of its deletion: no list shows it any more, and nothing of it is changed; its measurements stay."""
    last_event: Mapped[int] = mapped_column(default=0)
    """Number of its newest event."""

    fingerprint: Mapped[FingerprintRow | None] = relationship()
    project: Mapped[ProjectRow] = relationship()

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
    """Trial: one configuration of a study; its executions are in `runs`."""

    __tablename__ = "trials"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    number: Mapped[int]
    state: Mapped[TrialState]
    origin: Mapped[TrialOrigin] = mapped_column(words(TrialOrigin))
    config: Mapped[TrialConfig] = mapped_column(Stored(TrialConfig))
    config_key: Mapped[str] = mapped_column(String(32))
    prediction: Mapped[TrialPrediction | None] = mapped_column(Stored(TrialPrediction))
    """Prediction made with the trial, before it ran."""
    reason: Mapped[TrialReason | None] = mapped_column(Stored(TrialReason))
    """Reason why the sampler chose it."""
    failure: Mapped[Failure | None] = mapped_column(Stored(Failure))
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]

    runs: Mapped[list["RunRow"]] = relationship(back_populates="trial", order_by="RunRow.position")

    __table_args__ = (UniqueConstraint("study_id", "number"), UniqueConstraint("study_id", "config_key"))


class RejectionRow(Row):
    """Configuration that the memory gate rejected."""

    __tablename__ = "rejections"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    config_key: Mapped[str] = mapped_column(String(32))
    value: Mapped[Rejection] = mapped_column(Stored(Rejection))
    created_at: Mapped[datetime]

    __table_args__ = (UniqueConstraint("study_id", "config_key"),)


class RunRow(Row):
    """Run, the leased unit: a model summary, a trial's search run, one of its validation runs in a final comparison,
    its resume check, or a trace of it."""

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    trial_id: Mapped[int | None] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"), index=True)
    position: Mapped[int]
    """Order of creation within the study."""
    purpose: Mapped[RunPurpose] = mapped_column(words(RunPurpose))
    comparison_round: Mapped[int] = mapped_column(default=0)
    """Number of the final comparison that a validation run was made for."""
    comparison_block: Mapped[int | None] = mapped_column("comparison_block")
    """Comparison block of a validation run."""
    undecided_s: Mapped[StepTimeRange | None] = mapped_column(Stored(tuple[float, float]))
    """Range of step times that needs a precise measurement; None: no range."""
    state: Mapped[TrialState]
    attempt: Mapped[int] = mapped_column(default=0)
    """Number of attempts so far; the number of the live one while `state` is running."""
    worker_id: Mapped[str | None] = mapped_column(ForeignKey("workers.id"))
    worker_session: Mapped[str | None] = mapped_column(String(64))
    host_id: Mapped[str | None] = mapped_column(String(128))
    """Host of its worker, where that shares a host (`WorkerRow.host_id`)."""
    started_at: Mapped[datetime | None]
    """Start of the live attempt."""
    lease_until: Mapped[datetime | None]
    fingerprint_key: Mapped[str | None] = mapped_column(ForeignKey("fingerprints.key"))
    measured_for: Mapped[str | None] = mapped_column(String(32))
    """Project that alone may learn from it, since its worker is bound to it; None: every project."""
    measurement: Mapped[Measurement | None] = mapped_column(Stored(Measurement))
    resume_check: Mapped[ResumeMeasurement | None] = mapped_column(Stored(ResumeMeasurement))
    diagnosis: Mapped[Diagnosis | None] = mapped_column(Packed(Diagnosis), deferred=True)
    """Diagnosis of a trace; read where it is asked for."""
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
    """Attempt: one lease of a run, with its worker and its end, kept forever."""

    __tablename__ = "attempts"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    worker_id: Mapped[str] = mapped_column(ForeignKey("workers.id"))
    worker_session: Mapped[str] = mapped_column(String(64))
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    end: Mapped[AttemptEnd | None] = mapped_column(words(AttemptEnd))
    """End of the attempt; None while it runs."""
    failure: Mapped[Failure | None] = mapped_column(Stored(Failure))
    gpu_seconds: Mapped[float | None]
    report_key: Mapped[str | None] = mapped_column(String(32))
    """Content key of the report that ended it, to recognise the same report when it comes again."""

    run: Mapped[RunRow] = relationship(back_populates="attempts")
    worker: Mapped[WorkerRow] = relationship()

    # finished_at: what a project spent since midnight.
    __table_args__ = (UniqueConstraint("run_id", "attempt"), Index("ix_attempts_finished", "finished_at"))


class EventRow(Row):
    """Event of a study, written by db.outbox with the change itself, never changed."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    number: Mapped[int]
    type: Mapped[EventType] = mapped_column(words(EventType, 32))
    created_at: Mapped[datetime]
    data: Mapped[dict[str, Any]] = mapped_column(Stored(dict[str, Any]))

    __table_args__ = (UniqueConstraint("study_id", "number"), Index("ix_events_created_at", "created_at"))


class WebhookRow(Row):
    """Webhook for events. Its secret is derived when needed (service.webhooks.secrets), and stored nowhere."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    url: Mapped[str] = mapped_column(Text)
    events: Mapped[tuple[EventType, ...]] = mapped_column(Stored(tuple[EventType, ...]))
    """Types of events; empty: all."""
    study_id: Mapped[str | None] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id"))
    """Project whose studies alone it receives events of; None: every project's."""
    is_enabled: Mapped[bool]
    disabled_reason: Mapped[str | None] = mapped_column(Text)
    secret_version: Mapped[int]
    rotated_at: Mapped[datetime | None]
    created_at: Mapped[datetime]


class DeliveryRow(Row):
    """Message to one webhook, written together with its event."""

    __tablename__ = "deliveries"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    type: Mapped[str] = mapped_column(String(32))
    """Type of an event, or `webhook.test`."""
    body: Mapped[str] = mapped_column(Text)
    """Body exactly as it is signed and sent."""
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
