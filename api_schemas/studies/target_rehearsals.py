"""Schemas of the rehearsals in a study's projected answer: the fastest configurations, built and stepped at the target's
number of ranks."""

from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.rehearsals import RehearsalProblem

RehearsalOutcome = Literal["built", "rejected", "not_rehearsed"]
"""Outcome of a rehearsal. `built`: the configuration was built and stepped, and fits where its memory was compared;
`rejected`: it cannot be built at the target, or needs more memory than a GPU may use, so that it is no answer;
`not_rehearsed`: nothing is known, and the projection stands."""


class TargetRehearsal(Schema):
    """Rehearsal of a projected configuration at the target's number of ranks, in a process of a worker: tensors had sizes
    and no values, nothing ran on a GPU, and nothing was timed."""

    trial_number: int
    """Number of the trial that stands for the configuration."""
    config: TrialConfig
    """Configuration on the target."""
    description: str
    """Short description of the configuration on the target."""
    ranks: int
    """Number of ranks of the target, all but one of which were played."""
    outcome: RehearsalOutcome
    problem: RehearsalProblem | None = None
    """Reason why the configuration is rejected, or was not rehearsed; null where it was built and fits."""
    allocated_gib: float | None = Field(default=None, examples=[16.8])
    """Peak of the tensors of the fullest rehearsed rank in GiB; null where it was not built."""
    predicted_gib: float | None = Field(default=None, examples=[16.5])
    """Predicted peak of the same tensors in GiB."""
    available_gib: float | None = Field(default=None, examples=[76.0])
    """Memory in GiB that a GPU of the target may use; null where the peak was not compared with it."""
    process_groups: int | None = None
    """Largest number of process groups of a rehearsed rank, the one of all ranks included; null where it was not built."""
    set_up_s: float | None = None
    """Seconds to make meshes and to wrap the model on one rank, without communication; null where it was not built."""
    without_compile: bool = False
    """Whether the configuration compiles its blocks and was rehearsed without: its peak is then not compared with the
    memory of a GPU, because what compiled blocks keep depends on kernels that only a GPU makes."""
