"""Queries on earlier studies whose clusters may be rungs below a study's own."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_state import StudyPurpose, StudyState
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.tables.fingerprints import FingerprintRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import TrialRow

_MOST_READ = 200
"""Number of a project's newest studies that are searched for measurements on smaller clusters. Studies of one model
on several cluster sizes usually run within days of each other."""


@dataclass(frozen=True)
class EndedStudy:
    """Ended study with those of its fields that are compared before its trials are read."""

    study_id: str
    spec: StudySpec
    cluster: Cluster
    fingerprint: Fingerprint
    complete_trials: int = 0
    """Number of the study's trials that were measured."""


def ended_studies(session: Session, project_id: str) -> Sequence[EndedStudy]:
    """Return the newest complete studies of a project that users requested, newest first."""
    complete_trials = (
        select(func.count())
        .where(TrialRow.study_id == StudyRow.id, TrialRow.state == TrialState.COMPLETE)
        .correlate(StudyRow)
        .scalar_subquery()
    )
    query = (
        select(StudyRow.id, StudyRow.spec, StudyRow.cluster, FingerprintRow.value, complete_trials)
        .join(FingerprintRow, FingerprintRow.key == StudyRow.fingerprint_key)
        .where(
            StudyRow.project_id == project_id,
            StudyRow.state == StudyState.COMPLETE,
            StudyRow.purpose == StudyPurpose.USER,
            StudyRow.deleted_at.is_(None),
        )
        .order_by(StudyRow.created_at.desc(), StudyRow.id.desc())
        .limit(_MOST_READ)
    )
    return [EndedStudy(*row) for row in session.execute(query)]
