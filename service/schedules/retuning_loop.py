"""Background loop of retuning: process the ticks of schedules, start due retunes, and continue running ones.

No step needs a leader, and none is lost with its process: each is one transaction that checks again before it writes.
"""

from functools import partial

from starlette.concurrency import run_in_threadpool

from shardtune.db.queries import retunes
from shardtune.service.process.background import run_every
from shardtune.service.process.context import Context
from shardtune.service.retuning import challenge_steps, driver, queue
from shardtune.service.schedules import ticks


async def keep_retuning(context: Context) -> None:
    """Process the ticks of schedules that are due, and take the due steps of all retunes (repeated measurements of
    recommendations), at intervals until cancelled.
    """
    # Separate steps: one that fails is logged, and the others still run in this round.
    await run_every(
        context.settings.retune_every_s,
        counting_uses=partial(run_in_threadpool, _write_usage_counts, context),
        accounting_for_ticks=partial(run_in_threadpool, ticks.account_for_due, context),
        starting_queued_ticks=partial(run_in_threadpool, ticks.start_queued, context),
        starting_retunes=partial(run_in_threadpool, queue.start_due, context, challenge_steps.start_challenge),
        driving_retunes=partial(
            run_in_threadpool, driver.drive, context, challenge_steps.start_challenge, challenge_steps.advance_retune
        ),
    )


def _write_usage_counts(context: Context) -> int:
    counts = context.usage_counts.take()
    if counts:
        with context.db.write() as session:
            retunes.add_uses(session, counts)
    return len(counts)
