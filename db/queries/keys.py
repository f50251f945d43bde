"""Queries on projects and API keys."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, bindparam, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, joinedload

from shardtune.api_schemas.access.keys import Quotas
from shardtune.api_schemas.studies.study_state import ACTIVE_STUDY_STATES
from shardtune.db.tables.access import ApiKeyRow, ProjectRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import AttemptRow, RunRow

# Made once, as all statements of a worker's requests: making one costs more than running it.
_ANY = select(ApiKeyRow.id).limit(1)
_BY_SECRET = (
    select(ApiKeyRow).where(ApiKeyRow.secret_sha256 == bindparam("secret")).options(joinedload(ApiKeyRow.project))
)


def any_key(connection: Connection) -> bool:
    """Whether an API key was ever created. Revoked keys count as well, so that revoking the last key does not turn
    authentication off."""
    # By a connection, as it is asked with every request: no row of ours has to be made.
    return connection.execute(_ANY).first() is not None


def by_secret(session: Session, secret_sha256: str) -> ApiKeyRow | None:
    """Return the API key that has this secret, and the project of the key."""
    return session.scalars(_BY_SECRET, {"secret": secret_sha256}).one_or_none()


def get(session: Session, key_id: str) -> ApiKeyRow | None:
    return session.get(ApiKeyRow, key_id)


def is_held(session: Session, holder_id: str, now: datetime) -> bool:
    """Whether a key holder has a valid API key, neither revoked nor expired."""
    query = select(ApiKeyRow.id).where(ApiKeyRow.holder_id == holder_id, ApiKeyRow.revoked_at.is_(None))
    query = query.where(or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > now))
    return session.scalars(query.limit(1)).first() is not None


def lock(session: Session, key_id: str) -> ApiKeyRow | None:
    """Return an API key, locked until the transaction ends."""
    query = select(ApiKeyRow).where(ApiKeyRow.id == key_id).with_for_update(key_share=True, of=ApiKeyRow)
    return session.scalars(query.execution_options(populate_existing=True)).one_or_none()


def note_use(session: Session, key_id: str, now: datetime) -> None:
    """Record that an API key was used. If another transaction has locked the key's row, nothing is recorded, because
    that transaction may record the same."""
    free = select(ApiKeyRow.id).where(ApiKeyRow.id == key_id).with_for_update(key_share=True, skip_locked=True)
    session.execute(update(ApiKeyRow).where(ApiKeyRow.id.in_(free)).values(last_used_at=now))


def newest(
    session: Session, project_id: str | None, after: tuple[datetime, str] | None, limit: int
) -> Sequence[ApiKeyRow]:
    """Return API keys of a project (None means all projects), newest first, starting behind `after`."""
    query = select(ApiKeyRow).order_by(ApiKeyRow.created_at.desc(), ApiKeyRow.id.desc()).limit(limit)
    if project_id is not None:
        query = query.where(ApiKeyRow.project_id == project_id)
    if after is not None:
        moment, key_id = after
        query = query.where(
            or_(ApiKeyRow.created_at < moment, (ApiKeyRow.created_at == moment) & (ApiKeyRow.id < key_id))
        )
    return session.scalars(query).all()


def project(session: Session, project_id: str) -> ProjectRow | None:
    return session.get(ProjectRow, project_id)


def lock_project(session: Session, project_id: str) -> ProjectRow | None:
    """Return a project, locked until the transaction ends. Transactions that count what a project uses of its quotas
    wait for this lock."""
    query = select(ProjectRow).where(ProjectRow.id == project_id).with_for_update(key_share=True)
    return session.scalars(query.execution_options(populate_existing=True)).one_or_none()


def put_project(session: Session, project_id: str, now: datetime) -> ProjectRow:
    """Return the project with an id, locked until the transaction ends; create it if necessary."""
    row = lock_project(session, project_id)
    if row is None:
        # Of two requests that create it at once, the second waits here for the first, and then finds its row.
        insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
        values = {"id": project_id, "quotas": Quotas(), "created_at": now}
        session.execute(insert(ProjectRow).values(values).on_conflict_do_nothing())
        row = lock_project(session, project_id)
    assert row is not None
    return row


def projects(session: Session, only: str | None, after: str | None, limit: int) -> Sequence[ProjectRow]:
    """Return a page of projects by id, starting behind `after`."""
    query = select(ProjectRow).order_by(ProjectRow.id).limit(limit)
    query = query if only is None else query.where(ProjectRow.id == only)
    return session.scalars(query if after is None else query.where(ProjectRow.id > after)).all()


def running_studies(session: Session, project_id: str) -> int:
    """Return the number of a project's studies that are running or waiting for a worker."""
    query = select(func.count()).where(StudyRow.project_id == project_id, StudyRow.state.in_(ACTIVE_STUDY_STATES))
    return int(session.scalars(query.select_from(StudyRow)).one())


def gpu_seconds_since(session: Session, project_id: str, moment: datetime) -> float:
    """Return the GPU-seconds that a project used in attempts at runs which ended since a given moment."""
    query = (
        select(func.coalesce(func.sum(AttemptRow.gpu_seconds), 0.0))
        .join(RunRow, RunRow.id == AttemptRow.run_id)
        .join(StudyRow, StudyRow.id == RunRow.study_id)
        .where(AttemptRow.finished_at >= moment, StudyRow.project_id == project_id)
    )
    return session.scalars(query).one() or 0.0
