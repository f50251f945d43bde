"""Schemas of the rehearsals in a study's projected answer: the fastest configurations, built and stepped at the target's
number of ranks."""

from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.rehearsals import RehearsalProblem

RehearsalOutcome = Literal["built", "rejected", "not_rehearsed"]
"""Outcome of a rehearsal, which builds a configuration and steps it with fake tensors. `built`: it was built and
stepped, and fits if its memory was compared. `rejected`: it cannot be built at the target, or needs more memory than a
GPU may use, so it cannot be the answer. `not_rehearsed`: nothing is known about it, and the projection remains the
answer."""


class TargetRehearsal(Schema):
    """Rehearsal of a configuration that was projected to a larger target. A process of a worker builds it at the
    target's number of ranks, and steps it with tensors that have sizes but no values. Nothing needs a GPU, and nothing
    is timed."""

    trial_number: int
    """Number of the measured trial from which the configuration is projected."""
    config: TrialConfig
    """Configuration on the target."""
    description: str
    """Short description of the configuration on the target."""
    ranks: int
    """Number of ranks of the target. Each process built one of them, while a fake process group simulated the
    others."""
    outcome: RehearsalOutcome
    problem: RehearsalProblem | None = None
    """Reason why the configuration was rejected or could not be rehearsed; null if it was built and fits."""
    allocated_gib: float | None = Field(default=None, examples=[16.8])
    """Peak memory of tensors in GiB: the largest among the ranks that were rehearsed. null if the configuration was not
    built."""
    predicted_gib: float | None = Field(default=None, examples=[16.5])
    """Predicted peak memory of tensors in GiB, to compare with the rehearsed peak `allocated_gib`."""
    available_gib: float | None = Field(default=None, examples=[76.0])
    """Memory in GiB that a GPU of the target may use; null if the rehearsed peak was not compared with it."""
    process_groups: int | None = None
    """Largest number of process groups to which a rehearsed rank belongs, including the group of all ranks. null if the
    configuration was not built."""
    set_up_s: float | None = None
    """Seconds that one rank takes to make its device meshes and to wrap the model, without communication. null if the
    configuration was not built."""
    without_compile: bool = False
    """Whether the configuration compiles its blocks or its loss but was rehearsed without compilation. Its peak is then
    not compared with the memory of a GPU, because compiled code needs other tensors, which depend on kernels that only
    a GPU makes."""
