"""The loop of retuning: ticks ask for retunes, what is due starts, what runs goes on.

No step needs a leader, and none is lost with the process that takes it: each is one transaction that looks again first.
"""

from functools import partial

from starlette.concurrency import run_in_threadpool

from shardtune.db.queries import retunes
from shardtune.service.process.background import run_every
from shardtune.service.process.context import Context
from shardtune.service.retuning import challenge_steps, driver, queue
from shardtune.service.schedules import ticks


async def keep_retuning(context: Context) -> None:
    """Take every step there is to take, until cancelled."""
    await run_every(
        context.settings.retune_every_s,
        counting_uses=partial(run_in_threadpool, _count_uses, context),
        accounting_for_ticks=partial(run_in_threadpool, ticks.account_for, context),
        starting_queued_ticks=partial(run_in_threadpool, ticks.start_queued, context),
        starting_retunes=partial(run_in_threadpool, queue.start_due, context, challenge_steps.start),
        driving_retunes=partial(
            run_in_threadpool, driver.drive, context, challenge_steps.start, challenge_steps.advance
        ),
    )


def _count_uses(context: Context) -> int:
    counts = context.uses.take()
    if counts:
        with context.db.write() as session:
            retunes.add_uses(session, counts)
    return len(counts)
