"""End attempts whose worker has disappeared: the lease expired, or a new session of the same worker replaced the old
one.
"""

from collections.abc import Callable
from functools import partial

from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.queries import leases
from shardtune.db.tables.studies import RunRow
from shardtune.service.lifecycle import advance, charges, outcomes
from shardtune.service.lifecycle.locked_run import lock_run
from shardtune.service.lifecycle.outcomes import JudgedEnd
from shardtune.service.process.background import run_every, sum_unlocked
from shardtune.service.process.context import Context


def sweep(context: Context) -> int:
    """End every attempt with an expired lease; returns the number of expired leases."""
    with context.db.read() as session:
        # Read without locks; each attempt is checked again under its lock, since its worker may renew meanwhile.
        expired = leases.expired(session, context.now())
    ended = sum_unlocked(expired, partial(_end_expired, context), lambda run: run.study_id)
    context.metrics.count_expired(ended)
    return len(expired)


def _end_expired(context: Context, run: RunRow) -> bool:
    reason = f"its worker was silent for {context.settings.lease_s:g} s"
    return end_lost_attempt(context, run.id, lambda row: _is_expired(context, row), reason)


def end_lost_attempt(
    context: Context, run_id: str, condition: Callable[[RunRow], bool], reason: str, is_release: bool = False
) -> bool:
    """End the current attempt of a run as `worker_lost` if `condition` is true for the locked run; returns whether it
    was ended.

    `is_release`: end the attempt as if the worker had returned the run, which does not count as a fault.
    """
    with context.db.write() as session:
        locked_run = lock_run(session, run_id)
        assert locked_run is not None, run_id
        run = locked_run.run
        if run.state is not TrialState.RUNNING or not condition(run):
            return False
        failure = Failure(kind=FailureKind.WORKER_LOST, message=f"the attempt ended because {reason}")
        ended = JudgedEnd(
            gpu_seconds=charges.until_silence(locked_run.study, run, context.settings.lease_s),
            failure=failure,
            is_release=is_release,
        )
        outcomes.apply_end(session, locked_run, ended, context.now())
    context.metrics.count_end(run.purpose, ended.end, ended.gpu_seconds)
    # After the commit, in transactions of its own; if the process dies here, `advance.catch_up` does it at the next
    # start.
    advance.advance(context, run.study_id)
    return True


async def keep_sweeping(context: Context) -> None:
    """Take the due steps left by a killed service, then end expired attempts at intervals until cancelled."""
    # Without this loop no lost run would ever be retried.
    task: Callable[[Context], object] = advance.catch_up

    async def step() -> None:
        nonlocal task
        await run_in_threadpool(task, context)
        task = sweep

    # Replaced only after success: a database that is away at the start must not lose the catch-up.

    await run_every(context.settings.sweep_s, at_once=True, looking_for_expired_leases=step)


def _is_expired(context: Context, run: RunRow) -> bool:
    return run.lease_until is not None and run.lease_until < context.now()
