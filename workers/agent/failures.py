"""Choice of the failure that caused a run to fail, among the failures of its ranks: the first, from which the others
followed."""

import signal

from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.workers.agent.supervise import RanksEnd
from shardtune.workers.launchers.base import RankExit
from shardtune.workers.trial_dir import TrialDir

_EXPLAINED = {
    FailureKind.OOM,
    FailureKind.OVER_LIMIT,
    FailureKind.ILLEGAL,
    FailureKind.NUMERICS,
    FailureKind.SETUP,
    FailureKind.DEVICE,
}

_CAUSE_KIND = {
    "deadline": FailureKind.DEADLINE,
    "no_progress": FailureKind.NO_PROGRESS,
    "host_lost": FailureKind.RANK_LOST,
    "node_lost": FailureKind.NODE_LOST,
    "interrupted": FailureKind.WORKER_LOST,
}

_BY_ITSELF = 0
"""Precedence of a failure whose report states its cause: 0 is chosen first, before deaths by signal and plain
crashes."""


def first_failure(directory: TrialDir, ended: RanksEnd) -> Failure | None:
    """Choose the failure that a run's result names: the probable cause of the failures of all its ranks. None if every
    rank ended well.

    A rank that dies takes its peers with it, and they report errors of their own. A failure whose report states its
    cause therefore comes before a death by signal, and a death by signal before a plain crash. Among failures of one
    kind the earliest is chosen.
    """
    candidates = [
        (_precedence(failure), _order_key(directory, ended, exit), failure)
        for exit in ended.exits
        if (failure := _failure_of(directory, exit, ended.conditions.had_oom_kill(exit.rank))) is not None
    ]
    if ended.cause == "node_lost":
        # Crashes of peers followed from the lost host; a self-explaining failure still counts.
        candidates = [entry for entry in candidates if entry[0] == _BY_ITSELF]
    if candidates:
        return min(candidates, key=lambda entry: entry[:2])[2]
    if ended.cause is None:
        return None
    if ended.cause == "host_lost" and any(node.oom_kills for node in ended.conditions.nodes):
        return Failure(kind=FailureKind.OOM, message="the kernel's out-of-memory killer ended the fork server")
    return Failure(kind=_CAUSE_KIND[ended.cause], message=ended.detail[:4000])


def _failure_of(directory: TrialDir, exit: RankExit, oom_killed: bool) -> Failure | None:
    report = directory.report(exit.rank)
    if report is not None and report.failure is not None:
        return report.failure.model_copy(
            update={"rank": exit.rank, "exit_code": report.failure.exit_code or exit.code or None}
        )
    if exit.code == 0 or (report is not None and report.status == "complete"):
        # After a complete report only the interpreter's shutdown remained; a failure there changes no measurement.
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


def _order_key(directory: TrialDir, ended: RanksEnd, exit: RankExit) -> tuple[float, int]:
    """Sort key of a failure: time of the rank's report where there is one, then the order in which the ranks' ends were
    noticed."""
    # No clocks of hosts are compared: reports are written on this host, by the rank or as they arrive from another
    # host.
    return (directory.reported_at(exit.rank), ended.exits.index(exit))


def crash(message: str, rank: int | None, exit_code: int) -> Failure:
    """Crash failure for a rank that ended without a report of the reason."""
    return Failure(kind=FailureKind.CRASH, message=message, rank=rank, exit_code=exit_code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
