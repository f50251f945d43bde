"""Short steps: schemas of a run whose steps have fewer micro batches than the workload's, and the extension of their
times to the whole step (docs/decisions/0013-short-steps.md)."""

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.training.workload import MOST_SAMPLES

_MOST_TIMES = 5000
SHORT_STEPS_SINCE = 2
"""First protocol version whose workers can train short steps, which have fewer micro batches than the workload's steps.
"""
MicroBatches = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
Accumulations = tuple[MicroBatches, MicroBatches]
"""Two numbers of micro batches per step with which steps are timed, the smaller one first."""


class ShortSteps(Schema):
    """Plan of a run with short steps: the numbers of micro batches in its steps, which are smaller than in the
    workload's whole step."""

    parity_samples: int = Field(ge=1, le=MOST_SAMPLES)
    """Number of different samples in each of the run's first steps, whose losses are recorded. It is the same in all
    runs of a study, so that their losses can be compared. If a configuration needs more samples for its micro batches,
    each sample is repeated."""
    parity_accumulation: MicroBatches
    """Number of micro batches in each of the run's first steps, whose losses are recorded to compare runs."""
    accumulations: Accumulations | None = None
    """Two numbers of micro batches with which steps are timed. The time of the whole step is extrapolated from them. If
    None, whole steps are timed."""

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.accumulations is not None and self.accumulations[0] >= self.accumulations[1]:
            first, second = self.accumulations
            raise ValueError(f"accumulations ({first}, {second}) must ascend; give the smaller number first")
        return self


class ShortStepTimes(Schema):
    """Step times of a run, measured with two numbers of micro batches. The time of the run's whole step was
    extrapolated from them."""

    parity_samples: int = Field(ge=1, le=MOST_SAMPLES)
    """Number of different samples in each of the run's first steps, whose losses are recorded to compare runs."""
    parity_accumulation: MicroBatches
    """Number of micro batches in each of the run's first steps, whose losses are recorded to compare runs."""
    accumulations: Accumulations | None = None
    """Two numbers of micro batches with which steps were timed. If None, whole steps were timed."""
    fewer_s: tuple[float, ...] = Field(default=(), max_length=_MOST_TIMES)
    """Seconds of each timed step with the smaller number of micro batches, on the slowest rank."""
    more_s: tuple[float, ...] = Field(default=(), max_length=_MOST_TIMES)
    """Seconds of each timed step with the larger number of micro batches, on the slowest rank."""

    @property
    def timed_s(self) -> float:
        """Total seconds of all timed steps with fewer micro batches than a whole step."""
        return sum(self.fewer_s) + sum(self.more_s)


def extended_s(fewer_s: float, more_s: float, accumulations: Accumulations, whole: int) -> float:
    """Return the seconds of a step with `whole` micro batches, extrapolated from the seconds of steps with two smaller
    numbers.

    Work that a step does once, such as the optimizer's update, counts once, because both times contain it. The result
    is never below the time of the longer short step.
    """
    fewer, more = accumulations
    slope_s = max(0.0, more_s - fewer_s) / (more - fewer)
    return more_s + (whole - more) * slope_s


def copied_samples(slots: range, copies: int) -> Sequence[int]:
    """Return the number of the sample in each of the given slots (places in a batch). Each sample fills `copies`
    consecutive slots."""
    return slots if copies == 1 else [slot // copies for slot in slots]
