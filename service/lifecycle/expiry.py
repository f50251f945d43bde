"""End attempts whose worker has disappeared: the lease expired, or a new session of the same worker replaced the old
one.
"""

from collections.abc import Callable
from functools import partial

from sqlalchemy.orm import Session

from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.queries import leases
from shardtune.db.tables.trials import RunRow
from shardtune.service.lifecycle import advance, charges, outcomes
from shardtune.service.lifecycle.locked_run import LockedRun, lock_run
from shardtune.service.lifecycle.outcomes import JudgedEnd
from shardtune.service.process.background import sum_unlocked
from shardtune.service.process.context import Context


def sweep(context: Context) -> int:
    """End every attempt at a run whose lease has expired; returns their number."""
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
    context: Context,
    run_id: str,
    condition: Callable[[RunRow], bool],
    reason: str,
    is_release: bool = False,
    is_preemption: bool = False,
    after_end: Callable[[Session, LockedRun], None] = lambda _session, _locked_run: None,
) -> bool:
    """End the current attempt at a run as `worker_lost` if `condition` is true for the run while it is locked;
    returns whether the attempt was ended.

    With `is_release`, the attempt ends as if the worker had returned the run, which does not count as a fault; with
    `is_preemption`, as one whose worker a user's study needed.
    `after_end` makes further changes in the same transaction.
    """
    with context.db.write() as session:
        locked_run = lock_run(session, run_id)
        assert locked_run is not None, run_id
        run = locked_run.run
        if run.state is not TrialState.RUNNING or not condition(run):
            return False
        ended = JudgedEnd(
            gpu_seconds=charges.until_silence(
                locked_run.study, run, locked_run.current_attempt, context.settings.lease_s
            ),
            failure=Failure(kind=FailureKind.WORKER_LOST, message=f"the attempt ended because {reason}"[:4000]),
            is_release=is_release,
            is_preemption=is_preemption,
        )
        outcomes.apply_end(session, locked_run, ended, context.now())
        after_end(session, locked_run)
    advance_after_end(context, run, ended)
    return True


def advance_after_end(context: Context, run: RunRow, ended: JudgedEnd) -> None:
    """Count the end of an attempt at a run in the metrics, and take the study's next steps. Call it after the
    transaction that ended the attempt.
    """
    context.metrics.count_end(run.purpose, ended.end, ended.gpu_seconds)
    # In transactions of its own; if the process dies here, `advance.catch_up` does it at the next start.
    advance.advance(context, run.study_id)


def _is_expired(context: Context, run: RunRow) -> bool:
    return run.lease_until is not None and run.lease_until < context.now()
