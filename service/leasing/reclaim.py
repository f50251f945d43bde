"""End attempts that their workers do not end: leases that expired, and deadlines that passed while the worker still
renewed the lease.
"""

from collections.abc import Callable
from functools import partial

from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.limits import is_outage
from shardtune.db.queries import leases
from shardtune.db.tables.trials import RunRow
from shardtune.service.leasing import lease_message, run_limits
from shardtune.service.lifecycle import advance, charges, expiry, outcomes
from shardtune.service.lifecycle.locked_run import LockedRun, lock_run
from shardtune.service.lifecycle.outcomes import JudgedEnd
from shardtune.service.process.background import run_every, sum_unlocked
from shardtune.service.process.context import Context


def sweep(context: Context) -> None:
    """End every attempt at a run whose lease has expired or whose deadline has passed."""
    try:
        expiry.sweep(context)
    finally:
        # A run whose attempt cannot be ended must not keep those of other runs.
        end_overdue_attempts(context)


def end_overdue_attempts(context: Context) -> int:
    """End every attempt at a run whose deadline has passed; a run that has progressed gets a later deadline instead.
    Returns the number of ended attempts.
    """
    with context.db.read() as session:
        overdue = leases.overdue(session, context.now())
    return sum_unlocked(overdue, partial(_end_overdue, context), lambda run: run.study_id)


def _end_overdue(context: Context, run: RunRow) -> bool:
    """End an attempt whose deadline has passed although its worker still renews the lease, for example because the
    agent hangs; returns whether the attempt was ended.
    """
    with context.db.write() as session:
        # Under the lock: the report may arrive just now, and then nothing is left to end.
        locked_run = lock_run(session, run.id)
        assert locked_run is not None, run.id
        run = locked_run.run
        if run.state is not TrialState.RUNNING or not _is_overdue(context, locked_run):
            return False
        ended = _overdue_end(context, locked_run)
        outcomes.apply_end(session, locked_run, ended, context.now())
    expiry.advance_after_end(context, run, ended)
    return True


def _is_overdue(context: Context, locked_run: LockedRun) -> bool:
    """Whether the deadline of a running attempt has passed. If the run has progressed since the deadline was last
    extended, it is extended first.
    """
    run, now = locked_run.run, context.now()
    assert run.started_at is not None
    deadline_s = lease_message.deadline_s(context, locked_run.study, run)
    if run.deadline_at is None:
        # A service of a release without deadlines leased the run.
        run.deadline_at = run_limits.deadline_at(run.started_at, deadline_s)
    if run.deadline_at >= now:
        return False
    waited_s = charges.allowed_wait_s(locked_run.study, run, locked_run.current_attempt)
    extended = run_limits.extended_deadline(run, deadline_s, waited_s, now)
    if extended is not None:
        run.deadline_at, run.extended_at_progress = extended, run.progress
    return extended is None


def _overdue_end(context: Context, locked_run: LockedRun) -> JudgedEnd:
    study, run = locked_run.study, locked_run.run
    assert run.started_at is not None
    elapsed_s = (context.now() - run.started_at).total_seconds()
    message = (
        f"the service ended the attempt {elapsed_s:.0f} s after its start: it had "
        f"{lease_message.deadline_s(context, study, run):.0f} s, and its worker renewed the lease without reporting an "
        "end; look into the worker's log, and restart the worker if it hangs"
    )
    failure = Failure(kind=FailureKind.DEADLINE, message=message)
    charged = charges.until(study, run, locked_run.current_attempt, context.now())
    return JudgedEnd(gpu_seconds=charged, failure=failure)


async def keep_sweeping(context: Context) -> None:
    """Take the steps that a killed service left undone, then end attempts at runs with an expired lease or a passed
    deadline, at intervals until cancelled.
    """
    # Without this loop no lost run would ever be retried.
    task: Callable[[Context], object] = advance.catch_up

    async def step() -> None:
        nonlocal task
        try:
            await run_in_threadpool(task, context)
        except Exception as error:  # a border: the next round begins with what this one could not
            # A database that is away at the start must not lose the catch-up. A study whose step fails must not keep it
            # going for ever: all other studies had their steps.
            task = task if is_outage(error) else sweep
            raise
        task = sweep

    await run_every(context.settings.sweep_s, at_once=True, looking_for_expired_leases=step)
