"""Queries on fingerprints (hardware and software versions), the workers that had them, and the recommendations measured
under them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Text, cast, delete, exists, func, or_, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, joinedload

from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.db.tables.fingerprint_periods import FingerprintPeriodRow
from shardtune.db.tables.fingerprints import FingerprintRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.workers import WorkerRow

MOST_PERIODS = 50
"""Maximum number of stored periods of one worker, in each of which its fingerprint (hardware and software versions)
stayed the same. A machine changes a few times a year; a worker that invents changes must not fill the database."""


@dataclass(frozen=True)
class FingerprintFilter:
    """Filter of fingerprints (hardware and software versions); a field that is None matches any value."""

    project_id: str | None = None
    """Project that is served by the workers which had the fingerprint (hardware and software versions)."""
    worker: str | None = None
    """Name or id of a worker that had the fingerprint (hardware and software versions)."""
    current_only: bool = False
    """Whether to return only fingerprints (hardware and software versions) that some worker has at present."""


@dataclass(frozen=True)
class TargetFreshness:
    """Whether the recommendation of one tuning target (model, workload, cluster) is fresh, that is, whether hardware
    and software are unchanged since its measurement."""

    project_id: str
    target_key: str
    target_key_without_fingerprint: str
    version: int
    fingerprint_key: str
    cluster_json: str
    """JSON text of the cluster, not parsed, since most of thousands of tuning targets (model, workload, cluster) have
    the same few clusters."""
    freshness: Freshness
    changed_fields: tuple[str, ...]
    stale_since: datetime | None
    stale_announced_at: datetime | None
    stale_announced_for: tuple[str, ...]


def put(session: Session, fingerprint: Fingerprint, now: datetime) -> str:
    """Store a fingerprint (hardware and software versions) under its key, unless already stored."""
    key = fingerprint.content_key()
    # Held, so that it is not forgotten (db.retention) before anything names it.
    if session.get(FingerprintRow, key, with_for_update={"read": True, "key_share": True}) is None:
        # A fleet that was upgraded brings the same new one from many workers at once.
        insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
        values = {"key": key, "value": fingerprint, "first_seen_at": now}
        session.execute(insert(FingerprintRow).values(values).on_conflict_do_nothing())
    return key


def note_period(session: Session, worker_id: str, key: str, now: datetime) -> None:
    """Begin a new period if a worker registers with another fingerprint (hardware and software versions) than before,
    and delete the worker's oldest periods beyond `MOST_PERIODS`. The caller must have locked the worker."""
    before = present_period(session, worker_id)
    if before is not None and before.fingerprint_key == key:
        return
    if before is not None:
        before.until = now
        session.flush()
    predecessor = before.fingerprint_key if before is not None else None
    session.add(FingerprintPeriodRow(worker_id=worker_id, fingerprint_key=key, predecessor_key=predecessor, since=now))
    session.flush()
    of_worker = select(FingerprintPeriodRow.id).where(FingerprintPeriodRow.worker_id == worker_id)
    old = of_worker.order_by(FingerprintPeriodRow.id.desc()).offset(MOST_PERIODS)
    session.execute(
        delete(FingerprintPeriodRow)
        .where(FingerprintPeriodRow.id.in_(session.scalars(old).all()))
        .execution_options(synchronize_session=False)
    )


def present_period(session: Session, worker_id: str) -> FingerprintPeriodRow | None:
    """Return the period in which a worker has its present fingerprint (hardware and software versions)."""
    query = select(FingerprintPeriodRow).where(
        FingerprintPeriodRow.worker_id == worker_id, FingerprintPeriodRow.until.is_(None)
    )
    return session.scalars(query).one_or_none()


def fleet(session: Session, seen_since: datetime) -> Sequence[FingerprintPeriodRow]:
    """Return the current fingerprint period of each worker that sent a request since a given moment, with the worker
    and its fingerprint (hardware and software versions)."""
    query = select(FingerprintPeriodRow).join(FingerprintPeriodRow.worker)
    query = query.where(FingerprintPeriodRow.until.is_(None), WorkerRow.seen_at >= seen_since)
    query = query.where(WorkerRow.forgotten_at.is_(None))
    return session.scalars(query.options(*_WITH_WORKER)).all()


def fleet_state(session: Session, seen_since: datetime, live_since: datetime) -> tuple[object, ...]:
    """Return a value that stays the same as long as neither the workers nor the recommendations change. It is cheaper
    than reading both."""
    fleet_query = select(
        FingerprintPeriodRow.id, WorkerRow.registered_at, WorkerRow.is_draining, WorkerRow.seen_at >= live_since
    ).join(FingerprintPeriodRow.worker)
    periods = session.execute(
        fleet_query.where(FingerprintPeriodRow.until.is_(None), WorkerRow.seen_at >= seen_since)
        .where(WorkerRow.forgotten_at.is_(None))
        .order_by(FingerprintPeriodRow.id)
    )
    served = session.execute(
        select(func.count(), func.sum(TuningTargetRow.version), func.max(TuningTargetRow.updated_at))
    )
    return tuple(map(tuple, periods)), tuple(served.one())


def of_workers(session: Session, worker_ids: Collection[str]) -> dict[str, list[FingerprintPeriodRow]]:
    """Return the periods in which the given workers had each of their fingerprints (hardware and software versions),
    newest first, by the worker's id."""
    query = select(FingerprintPeriodRow).where(FingerprintPeriodRow.worker_id.in_(worker_ids))
    query = query.order_by(FingerprintPeriodRow.id.desc())
    periods: dict[str, list[FingerprintPeriodRow]] = {}
    for period in session.scalars(query.options(*_WITH_WORKER)):
        periods.setdefault(period.worker_id, []).append(period)
    return periods


def get(session: Session, key: str) -> FingerprintRow | None:
    return session.get(FingerprintRow, key)


def page(
    session: Session, criteria: FingerprintFilter, after: tuple[datetime, str] | None, limit: int
) -> Sequence[FingerprintRow]:
    """Return a page of fingerprints (hardware and software versions) that match a filter, newest first, starting
    behind `after`."""
    time, key = FingerprintRow.first_seen_at, FingerprintRow.key
    query = select(FingerprintRow).order_by(time.desc(), key.desc()).limit(limit)
    if criteria != FingerprintFilter():
        query = query.where(
            exists()
            .where(FingerprintPeriodRow.fingerprint_key == key, WorkerRow.id == FingerprintPeriodRow.worker_id)
            .where(*_matching(criteria))
        )
    if after is not None:
        query = query.where(tuple_(time, key) < after)
    return session.scalars(query).all()


def holders(session: Session, keys: Collection[str], project_id: str | None) -> dict[str, list[FingerprintPeriodRow]]:
    """Return the periods in which workers had the given fingerprints (hardware and software versions), by the
    fingerprints' keys, newest first. Only workers that serve a project count (None means any project)."""
    query = (
        select(FingerprintPeriodRow)
        .join(FingerprintPeriodRow.worker)
        .where(FingerprintPeriodRow.fingerprint_key.in_(keys))
    )
    query = query.where(*_matching(FingerprintFilter(project_id))).order_by(
        FingerprintPeriodRow.since.desc(), FingerprintPeriodRow.id
    )
    periods: dict[str, list[FingerprintPeriodRow]] = {key: [] for key in keys}
    for period in session.scalars(query.options(*_WITH_WORKER)):
        periods[period.fingerprint_key].append(period)
    return periods


def dependents(session: Session, key: str, project_id: str | None, limit: int) -> Sequence[TuningTargetRow]:
    """Return the tuning targets (model, workload, cluster) whose recommendation was measured under a fingerprint
    (hardware and software versions), sorted by key."""
    present = (TuningTargetRow.recommended_id.is_not(None), TuningTargetRow.superseded_by.is_(None))
    query = select(TuningTargetRow).where(TuningTargetRow.fingerprint_key == key, *present)
    if project_id is not None:
        query = query.where(TuningTargetRow.project_id == project_id)
    query = query.order_by(TuningTargetRow.target_key, TuningTargetRow.project_id).limit(limit)
    return session.scalars(query.options(joinedload(TuningTargetRow.recommended))).all()


def target_freshness(session: Session) -> Sequence[TargetFreshness]:
    """Return every tuning target (model, workload, cluster) with a recommendation, newest first, without the
    recommendation's content."""
    query = (
        select(
            TuningTargetRow.project_id,
            TuningTargetRow.target_key,
            TuningTargetRow.target_key_without_fingerprint,
            TuningTargetRow.version,
            TuningTargetRow.fingerprint_key,
            cast(StudyRow.cluster, Text).label("cluster_json"),
            TuningTargetRow.freshness,
            TuningTargetRow.changed_fields,
            TuningTargetRow.stale_since,
            TuningTargetRow.stale_announced_at,
            TuningTargetRow.stale_announced_for,
        )
        .join(RecommendationRow, RecommendationRow.id == TuningTargetRow.recommended_id)
        .join(StudyRow, StudyRow.id == RecommendationRow.study_id)
        .where(TuningTargetRow.fingerprint_key.is_not(None), TuningTargetRow.superseded_by.is_(None))
        .order_by(TuningTargetRow.updated_at.desc(), TuningTargetRow.target_key)
    )
    return [TargetFreshness(**row._mapping) for row in session.execute(query)]


def values(session: Session, keys: Collection[str]) -> dict[str, Fingerprint]:
    """Return the fingerprints (hardware and software versions) with the given keys, by key."""
    query = select(FingerprintRow.key, FingerprintRow.value).where(FingerprintRow.key.in_(keys))
    return {row.key: row.value for row in session.execute(query)}


_WITH_WORKER = (
    joinedload(FingerprintPeriodRow.worker),
    joinedload(FingerprintPeriodRow.fingerprint),
    joinedload(FingerprintPeriodRow.predecessor),
)


def _matching(criteria: FingerprintFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if criteria.project_id is not None:
        conditions.append(or_(WorkerRow.project_id.is_(None), WorkerRow.project_id == criteria.project_id))
    if criteria.worker is not None:
        conditions.append(or_(WorkerRow.name == criteria.worker, WorkerRow.id == criteria.worker))
    if criteria.current_only:
        conditions.append(FingerprintPeriodRow.until.is_(None))
    return conditions
