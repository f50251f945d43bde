"""Tables of recommendations: the answer of each finished study, the recommended one of each tuning target, and the
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
    """The answer of one study."""

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
    """Tuning target of one project, with its recommendation. `version` grows with every change."""

    __tablename__ = "tuning_targets"

    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    target_key: Mapped[str] = mapped_column(String(32), primary_key=True)
    target_key_without_fingerprint: Mapped[str] = mapped_column(String(32))
    model_key: Mapped[str] = mapped_column(String(32))
    model_type: Mapped[str] = mapped_column(String(100))
    device: Mapped[str] = mapped_column(String(8))
    recommended_id: Mapped[str | None] = mapped_column("recommended_id", ForeignKey("recommendations.id"))
    """Recommendation in use; None: nothing was approved yet."""
    is_pinned: Mapped[bool] = mapped_column(default=False)
    freshness: Mapped[Freshness] = mapped_column(words(Freshness, 8), default=Freshness.FRESH)
    changed_fields: Mapped[tuple[str, ...]] = mapped_column(Stored(tuple[str, ...]), default=())
    """Changed fields of the fingerprint since the measurement: where stale, those that make it so; else those that
    lower the confidence."""
    fingerprint_key: Mapped[str | None] = mapped_column(ForeignKey("fingerprints.key"))
    """Fingerprint that the recommendation was measured under; None: there is none."""
    stale_since: Mapped[datetime | None]
    stale_announced_at: Mapped[datetime | None]
    """Time at which staleness was announced, and a retune asked for; None: not yet, or it is fresh."""
    stale_announced_for: Mapped[tuple[str, ...]] = mapped_column(
        Stored(tuple[str, ...]), default=(), server_default="[]"
    )
    """Changes for which staleness was announced, as `field=value`."""
    uses: Mapped[int] = mapped_column(default=0, server_default="0")
    """Approximate number of times it was given out: each service process counts, and adds its count every few
    seconds."""
    planned_gpu_seconds: Mapped[float | None]
    """Declared length of the training run it is for, in GPU-seconds."""
    superseded_by: Mapped[str | None] = mapped_column(String(32))
    """Key of the same tuning target on the fingerprint it was measured on since; None: this row is the present one."""
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
    """One decision, kept forever."""

    __tablename__ = "decisions"

    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    target_key: Mapped[str] = mapped_column(String(32))
    recommendation_id: Mapped[str] = mapped_column(ForeignKey("recommendations.id"))
    action: Mapped[DecisionAction] = mapped_column(words(DecisionAction))
    by: Mapped[str] = mapped_column(String(100))
    note: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]

    recommendation: Mapped[RecommendationRow] = relationship()

    __table_args__ = (Index("ix_decisions_target", "project_id", "target_key", "id"),)
