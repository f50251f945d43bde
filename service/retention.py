"""Forget old events, webhook messages, ticks, log tails, raw traces, answers to named requests, and workers that are gone.
Never measurements, attempts or results.
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

_EVERY_S = 3600.0
_UNNAMED = timedelta(hours=1)
"""A fingerprint is stored just before what names it."""


def forget(context: Context) -> dict[str, int]:
    """Forget what is older than the settings say, in small transactions; returns how many rows of each kind."""
    now, settings = context.now(), context.settings
    events_before = now - timedelta(days=settings.keep_events_days)
    logs_before = now - timedelta(days=settings.keep_logs_days)
    traces_before = now - timedelta(days=settings.keep_traces_days)
    answers_before = now - idempotent_requests.KEPT
    workers_before = now - timedelta(days=settings.keep_workers_days)
    forgotten: Counter[str] = Counter()
    while True:
        with context.db.write() as session:
            now_gone = {
                "events": retention.delete_events(session, events_before),
                "deliveries": retention.delete_deliveries(session, events_before),
                "ticks": retention.delete_ticks(session, events_before),
                "log_tails": retention.clear_log_tails(session, logs_before),
                "traces": retention.delete_traces(session, traces_before),
                "idempotent_requests": retention.delete_idempotent(session, answers_before),
                "workers": retention.delete_workers(session, workers_before),
                "workers_gone": workers.forget_gone(session, workers_before, now),
                "fingerprints": retention.delete_fingerprints(session, now - _UNNAMED),
            }
        forgotten.update(now_gone)
        if not any(now_gone.values()):
            return forgotten


async def keep_forgetting(context: Context) -> None:
    """Once an hour, until cancelled."""

    async def step() -> None:
        forgotten = await run_in_threadpool(forget, context)
        if any(forgotten.values()):
            log.info("old entries forgotten", extra=forgotten)

    await run_every(_EVERY_S, forgetting_old_entries=step)
