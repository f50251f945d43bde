"""Read fingerprints: which there were, who had them when, what changed, and which recommendations depend on them."""

from collections.abc import Sequence
from dataclasses import astuple
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.fingerprints import (
    Dependent,
    FieldChange,
    FingerprintDetail,
    FingerprintHolder,
    FingerprintPage,
    FingerprintRecord,
)
from shardtune.db.queries import fingerprints
from shardtune.db.queries.fingerprints import FingerprintFilter
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.fingerprints import FingerprintPeriodRow
from shardtune.db.tables.studies import FingerprintRow
from shardtune.service.http import paging
from shardtune.service.http.errors import NotFound
from shardtune.service.process.context import Context
from shardtune.service.workers.registry import live_since
from shardtune.tuner.freshness.fingerprints import changes

_MOST_DEPENDENTS = 500


def page(context: Context, worker: str | None, current_only: bool, token: str | None, limit: int) -> FingerprintPage:
    """Fingerprints of the workers that serve the sender's projects, the newest first."""
    wanted = FingerprintFilter(context.principal.project_id, worker, current_only)
    filters = astuple(wanted)
    with context.db.read() as session:
        after = paging.start(token, filters, paging.moment_and_id)
        rows = fingerprints.page(session, wanted, after, limit + 1)
        shown, following = paging.cut(rows, limit, filters, lambda row: [row.first_seen_at.isoformat(), row.key])
        found = tuple(_records(context, session, shown))
    return FingerprintPage(fingerprints=found, next_page_token=following)


def read(context: Context, fingerprint_id: str) -> FingerprintDetail:
    """One fingerprint with what depends on it.

    Raises:
        NotFound: no worker that serves the sender's projects ever had it.
    """
    only = context.principal.project_id
    with context.db.read() as session:
        row = fingerprints.get(session, fingerprint_id)
        records = _records(context, session, [row] if row is not None else [])
        dependents = fingerprints.dependents(session, fingerprint_id, only, _MOST_DEPENDENTS)
        if not records or (only is not None and not records[0].holders and not dependents):
            raise NotFound(
                "unknown_fingerprint",
                f"fingerprint {fingerprint_id} does not exist; GET /v1/fingerprints lists those that do",
            )
        shown = tuple(_dependent(row) for row in dependents)
        return FingerprintDetail.model_validate({**dict(records[0]), "dependents": shown})


def changes_of(period: FingerprintPeriodRow) -> tuple[FieldChange, ...]:
    """What the worker's fingerprint changed in when the period began; empty for its first."""
    if period.predecessor is None:
        return ()
    value = period.fingerprint.value
    return changes(period.predecessor.value, value, period.worker.offer.cluster.nodes)


def _records(context: Context, session: Session, rows: Sequence[FingerprintRow]) -> list[FingerprintRecord]:
    held = fingerprints.holders(session, [row.key for row in rows], context.principal.project_id)
    live = live_since(context)
    return [
        FingerprintRecord(
            fingerprint_id=row.key,
            fingerprint=row.value,
            is_overridden=bool(row.value.overridden),
            first_seen_at=row.first_seen_at,
            is_current=any(period.until is None for period in held[row.key]),
            holders=tuple(_holder(period, live) for period in held[row.key]),
        )
        for row in rows
    ]


def _holder(period: FingerprintPeriodRow, live: datetime) -> FingerprintHolder:
    return FingerprintHolder(
        worker_id=period.worker_id,
        worker=period.worker.name,
        since=period.since,
        until=period.until,
        is_live=period.until is None and period.worker.seen_at >= live,
        predecessor_id=period.predecessor_key,
        changes=changes_of(period),
    )


def _dependent(row: TuningTargetRow) -> Dependent:
    assert row.serving is not None
    return Dependent(
        project_id=row.project_id,
        target_key=row.target_key,
        recommendation_id=row.serving.id,
        model=row.serving.answer.model.name,
        freshness=row.freshness,
        changed_fields=tuple(row.changed_fields),
    )
