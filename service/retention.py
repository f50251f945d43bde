"""Delete old events, webhook messages, ticks, log tails, raw traces, stored responses, and workers that have
disappeared.

Measurements, attempts and results are never deleted.
"""

import logging
from collections import Counter
from datetime import timedelta

from starlette.concurrency import run_in_threadpool

from shardtune.db import retention
from shardtune.db.queries import workers
from shardtune.service.http import idempotent_requests
from shardtune.service.process.background import run_every
from shardtune.service.process.context import Context

log = logging.getLogger(__name__)

_INTERVAL_S = 3600.0
# A fingerprint is stored just before the row that refers to it, so a new one is not orphaned yet.
_ORPHAN_AGE = timedelta(hours=1)
"""Minimum age at which a fingerprint (hardware and software versions) that no row refers to is deleted."""


def delete_old(context: Context) -> dict[str, int]:
    """Delete events, messages, logs, traces and workers that are older than the settings allow, in small transactions.
    Returns the number of deleted rows by kind.
    """
    now, settings = context.now(), context.settings
    events_before = now - timedelta(days=settings.keep_events_days)
    logs_before = now - timedelta(days=settings.keep_logs_days)
    traces_before = now - timedelta(days=settings.keep_traces_days)
    answers_before = now - idempotent_requests.KEY_LIFETIME
    workers_before = now - timedelta(days=settings.keep_workers_days)
    deleted_in_total: Counter[str] = Counter()
    # Small batches: one large delete would hold its locks, and on SQLite all writers, for as long as it takes.
    while True:
        with context.db.write() as session:
            deleted = {
                "events": retention.delete_events(session, events_before),
                "deliveries": retention.delete_deliveries(session, events_before),
                "ticks": retention.delete_ticks(session, events_before),
                "log_tails": retention.clear_log_tails(session, logs_before),
                "traces": retention.delete_traces(session, traces_before),
                "idempotent_requests": retention.delete_idempotent(session, answers_before),
                "workers": retention.delete_workers(session, workers_before),
                "workers_gone": workers.forget_gone(session, workers_before, now),
                "fingerprints": retention.delete_fingerprints(session, now - _ORPHAN_AGE),
            }
        deleted_in_total.update(deleted)
        if not any(deleted.values()):
            return deleted_in_total


async def keep_forgetting(context: Context) -> None:
    """Delete old entries from the database once an hour, until cancelled."""

    async def step() -> None:
        deleted = await run_in_threadpool(delete_old, context)
        if any(deleted.values()):
            log.info("old entries forgotten", extra=deleted)

    await run_every(_INTERVAL_S, forgetting_old_entries=step)
