"""The loop of retuning: ticks ask for retunes, what is due starts, what runs goes on.

No step needs a leader, and none is lost with the process that takes it: each is one transaction that looks again first.
"""

import asyncio
import logging

from starlette.concurrency import run_in_threadpool

from shardtune.db.queries import retunes
from shardtune.service.process.context import Context
from shardtune.service.retuning import challenge_steps, driver, queue
from shardtune.service.schedules import ticks

log = logging.getLogger(__name__)


def step(context: Context) -> None:
    """Take every step there is to take; one that breaks holds up none of the others."""
    for part in (_count_uses, ticks.account_for, ticks.start_queued, _start_due, _drive):
        try:
            part(context)
        except Exception:
            log.exception("retuning: %s failed; trying again", part.__name__.strip("_"))


async def keep_retuning(context: Context) -> None:
    """Step until cancelled."""
    while True:
        await asyncio.sleep(context.settings.retune_every_s)
        await run_in_threadpool(step, context)


def _start_due(context: Context) -> int:
    return queue.start_due(context, challenge_steps.start)


def _drive(context: Context) -> int:
    return driver.drive(context, challenge_steps.start, challenge_steps.advance)


def _count_uses(context: Context) -> int:
    counts = context.uses.take()
    if counts:
        with context.db.write() as session:
            retunes.add_uses(session, counts)
    return len(counts)
