"""Table of canaries: runs that check whether a recommended configuration is as fast as it was measured."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from shardtune.api_schemas.retuning.canaries import CanaryRole, CanaryVerdict
from shardtune.db.tables.base import Row
from shardtune.db.tables.best import RecommendationRow
from shardtune.db.tables.studies import StudyRow, WorkerRow
from shardtune.db.tables.types import words


class CanaryRow(Row):
    """Run of a recommended configuration on one worker."""

    __tablename__ = "canaries"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    target_key: Mapped[str] = mapped_column(String(32))
    recommendation_id: Mapped[str] = mapped_column(ForeignKey("recommendations.id"))
    worker_id: Mapped[str] = mapped_column(ForeignKey("workers.id"))
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id"))
    tick: Mapped[int]
    """Number of the period that it was made for."""
    role: Mapped[CanaryRole] = mapped_column(words(CanaryRole, 8))
    verdict: Mapped[CanaryVerdict | None] = mapped_column(words(CanaryVerdict))
    """Verdict; None while it runs."""
    tokens_per_s_per_gpu: Mapped[float | None]
    """Speed of its fastest run."""
    change: Mapped[float | None]
    """Ratio of its speed to the expected speed."""
    reason: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]

    study: Mapped[StudyRow] = relationship()
    worker: Mapped[WorkerRow] = relationship()
    recommendation: Mapped[RecommendationRow] = relationship()

    __table_args__ = (
        # Of several replicas one begins the canary of a period.
        UniqueConstraint("project_id", "target_key", "tick", "role"),
        Index("ix_canaries_verdict", "verdict", "created_at"),
        Index("ix_canaries_target", "project_id", "target_key", "created_at"),
    )
