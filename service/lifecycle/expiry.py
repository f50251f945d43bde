"""End attempts whose worker is gone: the lease ran out, or a new session of the worker took its place."""

from collections.abc import Callable
from functools import partial

from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.trial import RunPurpose, TrialState
from shardtune.db.queries import leases
from shardtune.db.tables.studies import RunRow, StudyRow
from shardtune.service.lifecycle import advance, outcomes
from shardtune.service.lifecycle.locked_run import hold
from shardtune.service.lifecycle.outcomes import JudgedEnd
from shardtune.service.process.background import count_done, run_every
from shardtune.service.process.context import Context


def sweep(context: Context) -> int:
    """End every expired attempt; returns how many there were."""
    with context.db.read() as session:
        expired = leases.expired(session, context.now())
    ended = count_done(expired, partial(_end_expired, context), lambda run: run.study_id)
    context.metrics.expired(ended)
    return len(expired)


def _end_expired(context: Context, run: RunRow) -> bool:
    why = f"its worker was silent for {context.settings.lease_s:g} s"
    return close_lost(context, run.id, lambda row: _is_expired(context, row), why)


def close_lost(
    context: Context, run_id: str, still: Callable[[RunRow], bool], why: str, is_release: bool = False
) -> bool:
    """End the live attempt of a run as `worker_lost` if, seen under the lock, `still` holds; whether it was ended.

    `is_release`: as one its worker handed back, which is nobody's fault.
    """
    with context.db.write() as session:
        held = hold(session, run_id)
        assert held is not None, run_id
        run = held.run
        if run.state is not TrialState.RUNNING or not still(run):
            return False
        failure = Failure(kind=FailureKind.WORKER_LOST, message=f"the attempt ended because {why}")
        ended = JudgedEnd(gpu_seconds=_spent(context, held.study, run), failure=failure, is_release=is_release)
        outcomes.settle(session, held, ended, context.now())
    context.metrics.ended(run.purpose, ended.end, ended.gpu_seconds)
    advance.advance(context, run.study_id)
    return True


async def keep_sweeping(context: Context) -> None:
    """Catch up with what a killed service left, then sweep until cancelled: without it no lost run is ever retried."""
    due: Callable[[Context], object] = advance.catch_up

    async def step() -> None:
        nonlocal due
        await run_in_threadpool(due, context)
        due = sweep

    await run_every(context.settings.sweep_s, at_once=True, looking_for_expired_leases=step)


def _is_expired(context: Context, run: RunRow) -> bool:
    return run.lease_until is not None and run.lease_until < context.now()


def _spent(context: Context, study: StudyRow, run: RunRow) -> float:
    """GPU-seconds up to the last sign of life, which is one lease before the end of the lease."""
    if run.started_at is None or run.lease_until is None:
        return 0.0
    alive_s = (run.lease_until - run.started_at).total_seconds() - context.settings.lease_s
    return max(0.0, alive_s) * (1 if run.purpose == RunPurpose.MODEL_SUMMARY else study.cluster.world_size)
