"""Read the history of fingerprints (hardware and software versions of workers): holders, changes and dependent
recommendations.
"""

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
from shardtune.db.tables.fingerprint_periods import FingerprintPeriodRow
from shardtune.db.tables.fingerprints import FingerprintRow
from shardtune.service.http import paging
from shardtune.service.http.errors import NotFound
from shardtune.service.process.context import Context
from shardtune.service.workers.registry import live_since
from shardtune.tuner.freshness.fingerprints import changes

_MAX_DEPENDENTS = 500


def list_fingerprints(
    context: Context, worker: str | None, current_only: bool, token: str | None, limit: int
) -> FingerprintPage:
    """Fingerprints (hardware and software versions) of the workers that serve the sender's projects, newest first."""
    fingerprint_filter = FingerprintFilter(context.principal.project_id, worker, current_only)
    filters = astuple(fingerprint_filter)
    with context.db.read() as session:
        # One row more than a page shows tells whether there is a next page.
        after = paging.parse_token(token, filters, paging.moment_and_id)
        rows = fingerprints.page(session, fingerprint_filter, after, limit + 1)
        page_rows, next_token = paging.split_page(
            rows, limit, filters, lambda row: [row.first_seen_at.isoformat(), row.key]
        )
        records = tuple(_record_views(context, session, page_rows))
    return FingerprintPage(fingerprints=records, next_page_token=next_token)


def read(context: Context, fingerprint_id: str) -> FingerprintDetail:
    """Read one fingerprint (hardware and software versions) with the recommendations that were measured under it.

    Raises:
        NotFound: no worker that serves the sender's projects ever had this fingerprint.
    """
    project_id = context.principal.project_id
    with context.db.read() as session:
        row = fingerprints.get(session, fingerprint_id)
        records = _record_views(context, session, [row] if row is not None else [])
        dependents = fingerprints.dependents(session, fingerprint_id, project_id, _MAX_DEPENDENTS)
        # The same answer for a fingerprint of another project as for one that never existed: an id must not reveal what
        # others own.
        if not records or (project_id is not None and not records[0].holders and not dependents):
            raise NotFound(
                "unknown_fingerprint",
                f"fingerprint {fingerprint_id} does not exist",
                api_remedy="GET /v1/fingerprints lists those that do",
            )
        dependent_views = tuple(_dependent_view(row) for row in dependents)
        return FingerprintDetail.model_validate({**dict(records[0]), "dependents": dependent_views})


def changes_of(period: FingerprintPeriodRow) -> tuple[FieldChange, ...]:
    """Fields that changed in a worker's fingerprint (hardware and software versions) at the beginning of this period,
    in which the fingerprint stayed the same; empty for the worker's first period.
    """
    if period.predecessor is None:
        return ()
    value = period.fingerprint.value
    return changes(period.predecessor.value, value, period.worker.offer.cluster.nodes)


def _record_views(context: Context, session: Session, rows: Sequence[FingerprintRow]) -> list[FingerprintRecord]:
    # Holders are read for the whole page in one statement, and limited to workers that the sender may see.
    periods = fingerprints.holders(session, [row.key for row in rows], context.principal.project_id)
    live_from = live_since(context)
    return [
        FingerprintRecord(
            fingerprint_id=row.key,
            fingerprint=row.value,
            is_overridden=bool(row.value.overridden),
            first_seen_at=row.first_seen_at,
            is_current=any(period.until is None for period in periods[row.key]),
            holders=tuple(_holder_view(period, live_from) for period in periods[row.key]),
        )
        for row in rows
    ]


def _holder_view(period: FingerprintPeriodRow, live_from: datetime) -> FingerprintHolder:
    return FingerprintHolder(
        worker_id=period.worker_id,
        worker=period.worker.name,
        since=period.since,
        until=period.until,
        is_live=period.until is None and period.worker.seen_at >= live_from,
        predecessor_id=period.predecessor_key,
        changes=changes_of(period),
    )


def _dependent_view(row: TuningTargetRow) -> Dependent:
    assert row.recommended is not None
    return Dependent(
        project_id=row.project_id,
        target_key=row.target_key,
        recommendation_id=row.recommended.id,
        model=row.recommended.answer.model.name,
        freshness=row.freshness,
        changed_fields=tuple(row.changed_fields),
    )
