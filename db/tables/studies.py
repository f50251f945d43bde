"""Table of studies. Their trials and runs are in db.tables.trials."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from shardtune.api_schemas.access.keys import DEFAULT_PROJECT
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.reasons import StudyReason
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import Contender, StudyResult
from shardtune.api_schemas.studies.study_state import OPEN_STUDY_STATES, StudyPhase, StudyPurpose, StudyState
from shardtune.api_schemas.studies.system_studies import SystemStudy
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.db.tables.access import ProjectRow
from shardtune.db.tables.base import Row
from shardtune.db.tables.fingerprints import FingerprintRow
from shardtune.db.tables.types import Stored, among, words

_OPEN = among("state", OPEN_STUDY_STATES)


class StudyRow(Row):
    """Table row of a study. `version` increases with every change that the search depends on, and guards decisions made
    outside a transaction."""

    __tablename__ = "studies"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    project_id: Mapped[str] = mapped_column(
        ForeignKey(ProjectRow.id), default=DEFAULT_PROJECT, server_default=DEFAULT_PROJECT
    )
    version: Mapped[int] = mapped_column(default=0)
    state: Mapped[StudyState]
    phase: Mapped[StudyPhase]
    spec: Mapped[StudySpec] = mapped_column(Stored(StudySpec))
    cluster: Mapped[Cluster] = mapped_column(Stored(Cluster))
    baseline: Mapped[TrialConfig | None] = mapped_column(Stored(TrialConfig))
    """Baseline of the study (the configuration that trials are compared with) in Shardtune's configuration format."""
    notes: Mapped[tuple[str, ...]] = mapped_column(Stored(tuple[str, ...]))
    """Notes for readers of the result; the first ones are written when the study is created."""
    model_summary: Mapped[ModelSummary | None] = mapped_column(Stored(ModelSummary))
    fingerprint_key: Mapped[str | None] = mapped_column(ForeignKey(FingerprintRow.key))
    """Key of the fingerprint (hardware and software) of the worker that took the first lease; only workers with the
    same fingerprint measure for this study."""
    gpu_seconds: Mapped[float] = mapped_column(default=0.0)
    parity_samples: Mapped[int | None]
    """Number of different samples in the recorded first steps of a study whose runs have short steps (fewer micro
    batches than the workload's); None if all steps are whole."""
    comparison_round: Mapped[int] = mapped_column(default=0)
    """Number of the current final comparison (paired runs that decide). It increases at the start of each final
    comparison, and runs of earlier ones do not count."""
    final_comparison: Mapped[Finalists | None] = mapped_column(Stored(Finalists))
    """Finalists of the current final comparison (paired runs that decide): the trials that are run again in it."""
    best_so_far: Mapped[Contender | None] = mapped_column(Stored(Contender))
    result: Mapped[StudyResult | None] = mapped_column(Stored(StudyResult))
    reason: Mapped[str | None] = mapped_column(Text)
    reason_code: Mapped[str | None] = mapped_column(String(32))
    """Code of the reason, a value of StudyReasonCode. The column holds text, because the next release may store a
    code that this release does not know."""
    reason_details: Mapped[str | None] = mapped_column(Text)
    resolve_key: Mapped[str | None] = mapped_column(String(32))
    """Key of the tuning target (model, workload, cluster) without hardware and software versions. It is set if the
    study was started because no configuration was known for the target."""
    purpose: Mapped[StudyPurpose] = mapped_column(
        words(StudyPurpose, 8), default=StudyPurpose.USER, server_default=StudyPurpose.USER.value
    )
    system_study: Mapped[SystemStudy | None] = mapped_column(Stored(SystemStudy))
    """Task of a study that the service started itself, such as to repeat a recommended configuration; None for a
    user's study."""
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    """Time at which the study could first run, from which its time budget counts; None as long as the study waits for
    a worker."""
    finished_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    """Time of the study's deletion, after which lists omit it and nothing in it changes; its measurements are kept."""
    last_event: Mapped[int] = mapped_column(default=0)
    """Number of the study's newest event."""

    fingerprint: Mapped[FingerprintRow | None] = relationship()
    project: Mapped[ProjectRow] = relationship()

    def explain(self, reason: StudyReason | None) -> None:
        """Store the reason why the search stopped, the study ended, or it waits; None removes the stored reason."""
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
