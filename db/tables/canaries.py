"""Table of canaries: periodic runs that check whether a recommended configuration is still as fast as measured."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from shardtune.api_schemas.retuning.canaries import CanaryRole, CanaryVerdict
from shardtune.db.tables.base import Row
from shardtune.db.tables.best import RecommendationRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.types import words
from shardtune.db.tables.workers import WorkerRow


class CanaryRow(Row):
    """Table row of a canary: a run of a recommended configuration on one worker to check its speed."""

    __tablename__ = "canaries"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    target_key: Mapped[str] = mapped_column(String(32))
    recommendation_id: Mapped[str] = mapped_column(ForeignKey("recommendations.id"))
    worker_id: Mapped[str] = mapped_column(ForeignKey("workers.id"))
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id"))
    tick: Mapped[int]
    """Number of the moment for which the canary (speed check of a recommended configuration) was sent: seconds since
    a fixed epoch."""
    role: Mapped[CanaryRole] = mapped_column(words(CanaryRole, 8))
    verdict: Mapped[CanaryVerdict | None] = mapped_column(words(CanaryVerdict))
    """Verdict of the canary (speed check of a recommended configuration); None while it runs."""
    tokens_per_s_per_gpu: Mapped[float | None]
    """Speed of the fastest run of the canary (speed check of a recommended configuration), in tokens per second and
    GPU."""
    change: Mapped[float | None]
    """Speed that the canary measured, divided by the reference speed of the recommended configuration that it checks.
    """
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
