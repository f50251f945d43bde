"""Common SQLAlchemy base class of all tables."""

from datetime import datetime

from sqlalchemy import MetaData
from sqlalchemy.orm import DeclarativeBase

from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.tables.types import UtcDateTime, words


class Row(DeclarativeBase):
    """SQLAlchemy base class of all table rows."""

    # Named constraints, so that a later revision can drop one on SQLite.
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {
        datetime: UtcDateTime,
        StudyState: words(StudyState),
        StudyPhase: words(StudyPhase),
        TrialState: words(TrialState),
    }
