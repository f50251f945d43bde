"""Queries on events."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from shardtune.db.tables.studies import EventRow, StudyRow


@dataclass(frozen=True)
class StreamEnd:
    """End of a study's events."""

    last_event: int
    has_ended: bool
    """Whether nothing follows, as far as is known: an ended study may be extended."""


def after(session: Session, study_id: str, number: int, limit: int) -> Sequence[EventRow]:
    """Return events of a study after a number, in order."""
    return session.scalars(
        select(EventRow)
        .where(EventRow.study_id == study_id, EventRow.number > number)
        .order_by(EventRow.number)
        .limit(limit)
    ).all()


def stream_ends(session: Session, study_ids: Collection[str]) -> dict[str, StreamEnd]:
    """Return the end of the events of each of these studies, in one query."""
    query = select(StudyRow.id, StudyRow.last_event, StudyRow.state).where(StudyRow.id.in_(study_ids))
    return {study_id: StreamEnd(last, not state.is_open) for study_id, last, state in session.execute(query)}
