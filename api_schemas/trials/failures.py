"""Schemas of failed runs: the cause, and whether it lies in the configuration or in the platform."""

from enum import StrEnum

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.names import ProgramOutput


class FailureKind(StrEnum):
    """Cause of a failed run; `is_infeasible` distinguishes causes in the configuration from causes in the platform."""

    OOM = "oom"
    """The device, NCCL or the host ran out of memory."""
    OVER_LIMIT = "over_limit"
    """The run exceeded the memory limit declared for a rank, or left less memory free than the study requires."""
    ILLEGAL = "illegal"
    """The backend rejects this combination of options in the configuration."""
    NUMERICS = "numerics"
    """A loss was NaN or infinite, or the losses differed from the reference losses that all trials of the study must
    reproduce."""
    CRASH = "crash"
    """A rank ended with an error that none of the other kinds describes."""
    RANK_LOST = "rank_lost"
    """A rank's process ended without a report, for example because a signal killed it."""
    NO_PROGRESS = "no_progress"
    """No rank reported progress for the allowed time."""
    DEADLINE = "deadline"
    """The run exceeded its maximum duration."""
    WORKER_LOST = "worker_lost"
    """The worker stopped renewing its lease (its temporary right to the run), so the run counts as lost."""
    NODE_LOST = "node_lost"
    """One of the hosts of a worker with several hosts was lost during the run."""
    DEVICE = "device"
    """The hardware was unsuitable for measurements: another process on the GPU, a memory or driver error, or a slow
    rank."""
    SUSPECT = "suspect"
    """The run ended with measurements that cannot be true, so that its result is not used."""
    DISTURBED = "disturbed"
    """The run was disturbed by other programs, by lowered GPU clocks, or by an unknown cause that the spread of its timed
    windows shows. Its measurement is discarded, and the run is repeated."""
    SETUP = "setup"
    """The worker could not start the run (missing package, full disk, device busy), or the service rejected its
    result."""


_INFEASIBLE = {FailureKind.OOM, FailureKind.OVER_LIMIT, FailureKind.ILLEGAL, FailureKind.NUMERICS}


class Failure(Schema):
    """Failure of a run with its cause and details."""

    kind: FailureKind
    message: ProgramOutput = Field(max_length=4000)
    """Description of the failure in one or two sentences."""
    rank: int | None = None
    """Number of the first rank that failed; None if unknown."""
    traceback: ProgramOutput | None = Field(default=None, max_length=20_000)
    exit_code: int | None = None
    """Exit code of the failed rank. A negative value is the number of the signal that ended it, with a minus sign."""
    peak_allocated_gib: float | None = None
    """Peak memory in GiB measured before the failure; None if not measured."""
    conditions: Conditions | None = None
    """State of the machine during the run, as observed by the worker."""

    @property
    def is_infeasible(self) -> bool:
        """Whether the configuration caused the failure, so that the sampler learns from it. If False, the platform
        caused it, and the run is retried once."""
        return self.kind in _INFEASIBLE
