"""Queries on events of studies."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from shardtune.api_schemas.notifications.events import EventType
from shardtune.db.tables.events import EventRow
from shardtune.db.tables.studies import StudyRow


@dataclass(frozen=True)
class StreamEnd:
    """Number of a study's last event, and whether the study has ended."""

    last_event: int
    has_ended: bool
    """Whether the study has ended, so that no event follows. If its budget is raised, an ended study continues and
    has more events."""


def after(session: Session, study_id: str, number: int, limit: int) -> Sequence[EventRow]:
    """Return the events of a study whose number is above a given one, in order."""
    return session.scalars(
        select(EventRow)
        .where(EventRow.study_id == study_id, EventRow.number > number)
        .order_by(EventRow.number)
        .limit(limit)
    ).all()


def newest(session: Session, study_id: str, types: Collection[EventType], limit: int) -> Sequence[EventRow]:
    """Return a study's newest events of some types, newest first."""
    query = select(EventRow).where(EventRow.study_id == study_id, EventRow.type.in_(types))
    return session.scalars(query.order_by(EventRow.number.desc()).limit(limit)).all()


def stream_ends(session: Session, study_ids: Collection[str]) -> dict[str, StreamEnd]:
    """Return the last event number and the end of each given study, in one query."""
    query = select(StudyRow.id, StudyRow.last_event, StudyRow.state).where(StudyRow.id.in_(study_ids))
    return {study_id: StreamEnd(last, not state.is_open) for study_id, last, state in session.execute(query)}
