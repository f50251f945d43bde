"""Failures of runs: causes, and whether the configuration or the platform is at fault."""

from enum import StrEnum

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.names import ProgramOutput


class FailureKind(StrEnum):
    """Cause of a failure; `is_infeasible` tells whether the configuration is at fault."""

    OOM = "oom"
    """The device, NCCL or the host ran out of memory."""
    OVER_LIMIT = "over_limit"
    """The run took more memory than declared or than the headroom leaves."""
    ILLEGAL = "illegal"
    """The backend rejects this combination of options."""
    NUMERICS = "numerics"
    """NaN, infinity, or a trajectory that leaves the study's reference."""
    CRASH = "crash"
    """A rank ended with an error that none of the above explains."""
    RANK_LOST = "rank_lost"
    """A rank ended without a report (killed by a signal)."""
    NO_PROGRESS = "no_progress"
    """No rank reported progress for the allowed time."""
    DEADLINE = "deadline"
    """The run took longer than its hard deadline."""
    WORKER_LOST = "worker_lost"
    """The worker stopped renewing its lease."""
    NODE_LOST = "node_lost"
    """One of a worker's several hosts was lost under the run."""
    DEVICE = "device"
    """The hardware was not fit to measure on: another process on the GPU, throttling, a memory or driver error, a slow rank."""
    SUSPECT = "suspect"
    """The run ended with numbers that cannot be true."""
    DISTURBED = "disturbed"
    """Other programs used the machine during the run, so its measurement is void; it is repeated."""
    SETUP = "setup"
    """The worker could not start the run (missing package, full disk, device busy), or the service did not take its result."""


_INFEASIBLE = {FailureKind.OOM, FailureKind.OVER_LIMIT, FailureKind.ILLEGAL, FailureKind.NUMERICS}


class Failure(Schema):
    """Failure as recorded, with enough to act on."""

    kind: FailureKind
    message: ProgramOutput = Field(max_length=4000)
    """Message of one or two sentences for a person."""
    rank: int | None = None
    """First rank that failed; None where it is unknown."""
    traceback: ProgramOutput | None = Field(default=None, max_length=20_000)
    exit_code: int | None = None
    """Exit code of the rank; negative: ended by that signal."""
    peak_allocated_gib: float | None = None
    """Peak memory measured before the failure; None where it was not."""
    conditions: Conditions | None = None
    """Conditions of the machine during the run, as its worker observed them."""

    @property
    def is_infeasible(self) -> bool:
        """Whether the configuration is at fault, which the sampler learns; else the platform is, and the run is
        retried once."""
        return self.kind in _INFEASIBLE
