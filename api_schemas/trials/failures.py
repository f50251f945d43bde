"""Why a run did not end with a measurement, and whose fault that is."""

from enum import StrEnum

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.names import Said


class FailureKind(StrEnum):
    """One word per cause; `is_infeasible` tells whose fault it is."""

    OOM = "oom"
    """The device, NCCL or the host ran out of memory."""
    OVER_LIMIT = "over_limit"
    """It ran, but took more memory than declared or than the headroom leaves."""
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
    """It ended with numbers that cannot be true."""
    DISTURBED = "disturbed"
    """Other programs used the machine meanwhile, so the run says nothing; it is repeated."""
    SETUP = "setup"
    """The worker could not start the run (missing package, full disk, device busy), or the service did not take its result."""


_INFEASIBLE = {FailureKind.OOM, FailureKind.OVER_LIMIT, FailureKind.ILLEGAL, FailureKind.NUMERICS}


class Failure(Schema):
    """A failure as recorded, with enough to act on."""

    kind: FailureKind
    message: Said = Field(max_length=4000)
    """One or two sentences for a person."""
    rank: int | None = None
    """The first rank that failed, where one is known."""
    traceback: Said | None = Field(default=None, max_length=20_000)
    exit_code: int | None = None
    """Negative: ended by that signal."""
    peak_allocated_gib: float | None = None
    """Measured before the failure, where it was."""
    conditions: Conditions | None = None
    """What the worker saw of its machine meanwhile."""

    @property
    def is_infeasible(self) -> bool:
        """True: the configuration's fault, which the sampler learns. False: the platform's, retried once."""
        return self.kind in _INFEASIBLE
