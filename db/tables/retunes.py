"""Tables of retuning (repeated measurement of recommendations): schedules, their ticks, and retunes."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint, false, text
from sqlalchemy.orm import Mapped, mapped_column

from shardtune.api_schemas.machines.fingerprints import FieldChange
from shardtune.api_schemas.retuning.retunes import OPEN_RETUNE_STATES, Gain, RetuneCause, RetuneOutcome, RetuneState
from shardtune.api_schemas.retuning.schedules import ScheduleSpec, TickKind, TickState, Trigger
from shardtune.db.tables.base import Row
from shardtune.db.tables.types import Stored, among, words

_OPEN = among("state", OPEN_RETUNE_STATES)
_ACTIVE = text("next_tick_at IS NOT NULL")


class ScheduleRow(Row):
    """Table row of a retuning schedule, which measures a project's recommendations again. `version` increases with
    every change."""

    __tablename__ = "schedules"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    spec: Mapped[ScheduleSpec] = mapped_column(Stored(ScheduleSpec))
    trigger: Mapped[Trigger] = mapped_column(words(Trigger))
    is_paused: Mapped[bool] = mapped_column(default=False)
    next_tick_at: Mapped[datetime | None]
    """Time of the first tick that no replica has processed. The replica that moves it forward (compare-and-set)
    processes the ticks up to the new time."""
    version: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]

    __table_args__ = (
        Index("ix_schedules_due", "next_tick_at", sqlite_where=_ACTIVE, postgresql_where=_ACTIVE),
        Index("ix_schedules_project", "project_id", "created_at", "id"),
    )


class ScheduleTickRow(Row):
    """Table row of a tick (planned or manual execution) of a schedule."""

    __tablename__ = "schedule_ticks"

    id: Mapped[int] = mapped_column(primary_key=True)
    schedule_id: Mapped[str] = mapped_column(ForeignKey("schedules.id", ondelete="CASCADE"))
    at: Mapped[datetime]
    """Time at which the tick of the schedule was due; for a tick that a person requested, the time of the request."""
    kind: Mapped[TickKind] = mapped_column(words(TickKind, 8))
    state: Mapped[TickState] = mapped_column(words(TickState, 8))
    merged_ticks: Mapped[int] = mapped_column(default=1)
    """Number of ticks that this tick stands for: itself, and missed ticks before it that were merged into it."""
    targets: Mapped[int] = mapped_column(default=0)
    """Number of recommendations that the tick requested to be measured again."""
    reason: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]

    __table_args__ = (
        UniqueConstraint("schedule_id", "kind", "at"),
        Index("ix_schedule_ticks_state", "schedule_id", "state", "at"),
    )


class RetuneRow(Row):
    """Table row of a retune (repeated measurement of one recommendation), from request to outcome."""

    __tablename__ = "retunes"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    target_key: Mapped[str] = mapped_column(String(32))
    """Key by which the row of the tuning target (model, workload, cluster) is found in the table `tuning_targets`."""
    cause: Mapped[RetuneCause] = mapped_column(words(RetuneCause))
    changes: Mapped[tuple[FieldChange, ...]] = mapped_column(Stored(tuple[FieldChange, ...]), default=())
    """Changes of hardware and software since the recommendation was measured."""
    schedule_id: Mapped[str | None] = mapped_column(ForeignKey("schedules.id", ondelete="SET NULL"))
    state: Mapped[RetuneState] = mapped_column(words(RetuneState))
    outcome: Mapped[RetuneOutcome | None] = mapped_column(words(RetuneOutcome))
    reason: Mapped[str | None] = mapped_column(Text)
    waits_for_budget: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether the running retune (repeated measurement of a recommendation) waits because the GPU-seconds of the day
    are used up; its `reason` says so."""
    challenge_study_id: Mapped[str | None] = mapped_column(ForeignKey("studies.id"))
    search_study_id: Mapped[str | None] = mapped_column(ForeignKey("studies.id"))
    gpu_seconds: Mapped[float] = mapped_column(default=0.0)
    planned_gpu_seconds: Mapped[float | None]
    expected_saving_gpu_seconds: Mapped[float | None]
    gain: Mapped[Gain | None] = mapped_column(Stored(Gain))
    not_before: Mapped[datetime]
    tries: Mapped[int] = mapped_column(default=0)
    """Number of consecutive failed starts or steps of the retune (repeated measurement of a recommendation)."""
    claimed_until: Mapped[datetime | None]
    """Time until which one replica has claimed the retune (repeated measurement of a recommendation); until then,
    other replicas leave it alone."""
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]

    __table_args__ = (
        # Two replicas, or two causes, never make two.
        Index(
            "uq_retunes_unfinished",
            "project_id",
            "target_key",
            unique=True,
            sqlite_where=_OPEN,
            postgresql_where=_OPEN,
        ),
        Index("ix_retunes_due", "state", "not_before"),
        Index("ix_retunes_project", "project_id", "created_at", "id"),
        Index("ix_retunes_schedule", "schedule_id", "created_at"),
    )

    @property
    def changed_fields(self) -> tuple[str, ...]:
        """Names of the fields of hardware and software that have changed."""
        return tuple(change.field for change in self.changes)
