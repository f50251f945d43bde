"""GPU-seconds that an attempt is charged: wall seconds of its lease × ranks, without the wait for a quiet machine.

The service measures a lease by its own clock, from the grant to the end. For this time the devices were the attempt's
alone, whatever they did. A worker's figure counts only where it agrees: quotas and the retuning budget would otherwise be
the worker's to spend, or to evade.
"""

from datetime import datetime

from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import AttemptRow, RunRow

_CLOCK_ERROR_S = 6.0
"""Tolerance in seconds between the durations of an attempt that its worker and the service measure. They differ
because the lease and the report take time to arrive, and because service replicas read the database's clock at
different moments.
"""


def reported(study: StudyRow, run: RunRow, attempt: AttemptRow, gpu_seconds: float, now: datetime) -> float:
    """GPU-seconds that are charged for an attempt when its worker reports the end: the figure that the worker
    reports, if it agrees with the time since the lease began, else the nearest figure that does.

    The caller has already stored the waiting time that the report states in the run's progress.
    """
    leased_s = (now - attempt.started_at).total_seconds()
    ranks = _rank_count(study, run)
    at_least = max(0.0, leased_s - allowed_wait_s(study, run, attempt) - _CLOCK_ERROR_S) * ranks
    at_most = max(0.0, leased_s + _CLOCK_ERROR_S)
    if gpu_seconds > at_most * ranks:
        # A gang lends all its hosts to a run that needs fewer. Read only here: most reports need no look at the worker.
        cluster = attempt.worker.offer.cluster
        ranks = cluster.world_size if cluster.nodes > 1 else ranks
    return min(max(gpu_seconds, at_least), at_most * ranks)


def until_silence(study: StudyRow, run: RunRow, attempt: AttemptRow, lease_s: float) -> float:
    """GPU-seconds that are charged for an attempt whose worker has fallen silent: those until the worker's last
    request, which came one lease duration before the lease expires."""
    if run.started_at is None or run.lease_until is None:
        return 0.0
    alive_s = (run.lease_until - run.started_at).total_seconds() - lease_s - allowed_wait_s(study, run, attempt)
    return max(0.0, alive_s) * _rank_count(study, run)


def until(study: StudyRow, run: RunRow, attempt: AttemptRow, now: datetime) -> float:
    """GPU-seconds of a running attempt from its start until now, or until its lease expired; the time in which it
    waited for a quiet machine is left out.
    """
    assert run.started_at is not None
    # A worker stops its ranks before its lease expires. The service may have been away since, and end the run only now.
    end = now if run.lease_until is None else min(now, run.lease_until)
    leased_s = (end - run.started_at).total_seconds()
    return max(0.0, leased_s - allowed_wait_s(study, run, attempt)) * _rank_count(study, run)


def allowed_wait_s(study: StudyRow, run: RunRow, attempt: AttemptRow) -> float:
    """Seconds for which a run's current attempt has waited for a quiet machine, as the worker says, but no more than
    its lease allowed.
    """
    return attempt.waited_s(run.progress, study.spec.wait_for_quiet_s)


def _rank_count(study: StudyRow, run: RunRow) -> int:
    """Number of ranks that a run occupies."""
    return 1 if run.purpose == RunPurpose.MODEL_SUMMARY else study.cluster.world_size
