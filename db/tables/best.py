"""Tables of recommendations (results of finished studies), tuning targets with their current recommendation, and
decisions."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.recommendations.best import Answer, DecisionAction, RecommendationState
from shardtune.db.tables.access import ProjectRow
from shardtune.db.tables.base import Row
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.types import Stored, words


class RecommendationRow(Row):
    """Table row of a recommendation: the configuration and the figures that one study has found."""

    __tablename__ = "recommendations"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    target_key: Mapped[str] = mapped_column(String(32))
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id"), index=True)
    state: Mapped[RecommendationState] = mapped_column(words(RecommendationState))
    answer: Mapped[Answer] = mapped_column(Stored(Answer))
    created_at: Mapped[datetime]

    study: Mapped[StudyRow] = relationship()
    project: Mapped[ProjectRow] = relationship()

    __table_args__ = (Index("ix_recommendations_list", "project_id", "target_key", "created_at", "id"),)


class TuningTargetRow(Row):
    """Table row of a tuning target (model + workload + cluster) of one project, with its current recommendation.
    `version` increases with every change."""

    __tablename__ = "tuning_targets"

    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    target_key: Mapped[str] = mapped_column(String(32), primary_key=True)
    target_key_without_fingerprint: Mapped[str] = mapped_column(String(32))
    model_key: Mapped[str] = mapped_column(String(32))
    model_type: Mapped[str] = mapped_column(String(100))
    device: Mapped[str] = mapped_column(String(8))
    recommended_id: Mapped[str | None] = mapped_column(ForeignKey("recommendations.id"))
    """Id of the current recommendation; None if none has been approved yet."""
    is_pinned: Mapped[bool] = mapped_column(default=False)
    freshness: Mapped[Freshness] = mapped_column(words(Freshness, 8), default=Freshness.FRESH)
    changed_fields: Mapped[tuple[str, ...]] = mapped_column(Stored(tuple[str, ...]), default=())
    """Fields of the fingerprint (hardware and software) that changed since the measurement. For a stale
    recommendation, only the fields that make it stale; for a fresh one, the fields that lower its confidence."""
    fingerprint_key: Mapped[str | None] = mapped_column(ForeignKey("fingerprints.key"))
    """Key of the fingerprint (hardware and software versions) under which the recommendation was measured; None
    without a recommendation."""
    stale_since: Mapped[datetime | None]
    stale_announced_at: Mapped[datetime | None]
    """Time at which staleness was announced and a retune (repeated measurement of a recommendation) requested; None
    if not yet, or if the recommendation is fresh."""
    stale_announced_for: Mapped[tuple[str, ...]] = mapped_column(
        Stored(tuple[str, ...]), default=(), server_default="[]"
    )
    """Changes as `field=value` for which the service announced that the recommendation is stale."""
    uses: Mapped[int] = mapped_column(default=0, server_default="0")
    """Approximate number of times the recommendation was requested: each service process counts, and adds its count
    every few seconds."""
    planned_gpu_seconds: Mapped[float | None]
    """Length in GPU-seconds of the training run for which the recommendation is used, as a user has declared it."""
    superseded_by: Mapped[str | None] = mapped_column(String(32))
    """Key of the same tuning target (model, workload, cluster) on the newer fingerprint (hardware and software
    versions) on which the target was measured again; None if this row is the current one."""
    version: Mapped[int] = mapped_column(default=0)
    updated_at: Mapped[datetime]

    recommended: Mapped[RecommendationRow | None] = relationship()

    __table_args__ = (
        Index("ix_tuning_targets_fingerprint", "fingerprint_key"),
        Index("ix_tuning_targets_without_fingerprint", "project_id", "target_key_without_fingerprint", "updated_at"),
        Index("ix_tuning_targets_model", "project_id", "model_key", "updated_at"),
        Index("ix_tuning_targets_type", "project_id", "model_type", "device", "updated_at"),
    )


class DecisionRow(Row):
    """Table row of a decision about a recommendation, kept permanently."""

    __tablename__ = "decisions"

    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    target_key: Mapped[str] = mapped_column(String(32))
    recommendation_id: Mapped[str] = mapped_column(ForeignKey("recommendations.id"))
    action: Mapped[DecisionAction] = mapped_column(words(DecisionAction))
    by: Mapped[str] = mapped_column(String(100))
    """Name of the API key that made the decision; several keys may have the same name. It is `service` if the service
    decided."""
    key_id: Mapped[str | None] = mapped_column(String(32))
    """Id of the API key that made the decision. None if the service decided, if it had no keys, or if an earlier
    release wrote the row."""
    note: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]

    recommendation: Mapped[RecommendationRow] = relationship()

    __table_args__ = (Index("ix_decisions_target", "project_id", "target_key", "id"),)
