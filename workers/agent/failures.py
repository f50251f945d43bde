"""Which of the failures that ranks end with is the run's: the one that the others followed from."""

import signal

from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.workers.agent.supervise import Ended
from shardtune.workers.launchers.base import RankExit
from shardtune.workers.trial_dir import TrialDir

_EXPLAINED = {FailureKind.OOM, FailureKind.OVER_LIMIT, FailureKind.ILLEGAL, FailureKind.NUMERICS, FailureKind.SETUP}

_CAUSE_KIND = {
    "deadline": FailureKind.DEADLINE,
    "no_progress": FailureKind.NO_PROGRESS,
    "host_lost": FailureKind.RANK_LOST,
    "node_lost": FailureKind.NODE_LOST,
    "interrupted": FailureKind.WORKER_LOST,
}

_BY_ITSELF = 0
"""Comes first: a failure that needs no other to explain it."""


def first_failure(directory: TrialDir, ended: Ended) -> Failure | None:
    """The failure to record, None when every rank ended well.

    A rank that dies takes its peers with it, and they report errors of their own. So what explains itself comes
    before a death by signal, that before a plain crash, and among equals the earliest counts.
    """
    found = [
        (_precedence(failure), _when(directory, ended, exit), failure)
        for exit in ended.exits
        if (failure := _failure_of(directory, exit, ended.seen.had_oom_kill(exit.rank))) is not None
    ]
    if ended.cause == "node_lost":
        # What its peers died of.
        found = [entry for entry in found if entry[0] == _BY_ITSELF]
    if found:
        return min(found, key=lambda entry: entry[:2])[2]
    if ended.cause is None:
        return None
    if ended.cause == "host_lost" and any(node.oom_kills for node in ended.seen.nodes):
        return Failure(kind=FailureKind.OOM, message="the kernel's out-of-memory killer ended the fork server")
    return Failure(kind=_CAUSE_KIND[ended.cause], message=ended.detail[:4000])


def _failure_of(directory: TrialDir, exit: RankExit, oom_killed: bool) -> Failure | None:
    report = directory.report(exit.rank)
    if report is not None and report.failure is not None:
        return report.failure.model_copy(
            update={"rank": exit.rank, "exit_code": report.failure.exit_code or exit.code or None}
        )
    if exit.code == 0 or (report is not None and report.status == "complete"):
        # After a complete report only the interpreter's shutdown was left; what goes wrong there measures nothing.
        return None
    if exit.code > 0:
        return crash(f"rank {exit.rank} ended with exit code {exit.code} and without a report", exit.rank, exit.code)
    if exit.code == -signal.SIGKILL and oom_killed:
        message = f"the kernel's out-of-memory killer ended rank {exit.rank}"
        return Failure(kind=FailureKind.OOM, message=message, rank=exit.rank, exit_code=exit.code)
    message = f"rank {exit.rank} was ended by {_signal_name(-exit.code)}"
    return Failure(kind=FailureKind.RANK_LOST, message=message, rank=exit.rank, exit_code=exit.code)


def _precedence(failure: Failure) -> int:
    if failure.kind in _EXPLAINED:
        return _BY_ITSELF
    # SIGABRT is how NCCL's watchdog and C++ end their own process after a peer's death; nothing a peer does
    # raises the other signals.
    by_signal = failure.exit_code is not None and failure.exit_code < 0 and failure.exit_code != -signal.SIGABRT
    return 1 if failure.kind == FailureKind.RANK_LOST and by_signal else 2


def _when(directory: TrialDir, ended: Ended, exit: RankExit) -> tuple[float, int]:
    """By report time where there is one, else by the order in which the ends were seen. Reports are written on this host: by
    the rank, or as they arrive from another one; no clocks are compared.
    """
    return (directory.reported_at(exit.rank), ended.exits.index(exit))


def crash(message: str, rank: int | None, exit_code: int) -> Failure:
    """An end that nothing explains."""
    return Failure(kind=FailureKind.CRASH, message=message, rank=rank, exit_code=exit_code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
