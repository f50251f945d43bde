"""Short steps: schemas of a run whose steps have fewer micro batches than the workload's, and the extension of their
times to the whole step (docs/decisions/0013-short-steps.md)."""

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.training.workload import MOST_SAMPLES

_MOST_TIMES = 5000
SHORT_STEPS_SINCE = 2
"""First protocol version whose workers know short steps."""
MicroBatches = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
Accumulations = tuple[MicroBatches, MicroBatches]
"""Two numbers of micro batches per step that are timed, the smaller one first."""


class ShortSteps(Schema):
    """Micro batches of the steps of a run that trains on fewer of them than the workload's whole step."""

    parity_samples: int = Field(ge=1, le=MOST_SAMPLES)
    """Number of different samples in each fully recorded first step: the same in all runs of a study, so that losses
    compare. Each sample is repeated as often as the configuration's micro batches need."""
    parity_accumulation: MicroBatches
    """Micro batches of each fully recorded first step."""
    accumulations: Accumulations | None = None
    """Micro batches of the timed steps, from whose times the whole step's is extended; None: whole steps are timed."""

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.accumulations is not None and self.accumulations[0] >= self.accumulations[1]:
            first, second = self.accumulations
            raise ValueError(f"accumulations ({first}, {second}) must ascend; give the smaller number first")
        return self


class ShortStepTimes(Schema):
    """Step times at two numbers of micro batches, from which a run's step time was extended."""

    parity_samples: int = Field(ge=1, le=MOST_SAMPLES)
    """Number of different samples in each fully recorded first step."""
    parity_accumulation: MicroBatches
    """Micro batches of each fully recorded first step."""
    accumulations: Accumulations | None = None
    """Micro batches of the timed steps; None: whole steps were timed."""
    fewer_s: tuple[float, ...] = Field(default=(), max_length=_MOST_TIMES)
    """Seconds of each timed step with the smaller number of micro batches, on the slowest rank."""
    more_s: tuple[float, ...] = Field(default=(), max_length=_MOST_TIMES)
    """Seconds of each timed step with the larger number of micro batches, on the slowest rank."""

    @property
    def timed_s(self) -> float:
        """Seconds of all timed short steps together."""
        return sum(self.fewer_s) + sum(self.more_s)


def extended_s(fewer_s: float, more_s: float, accumulations: Accumulations, whole: int) -> float:
    """Seconds of a step with `whole` micro batches, from the seconds of a step at each of two numbers of them.

    What happens once a step counts once, because both times contain it. A whole step never takes less than the longer
    of the short ones.
    """
    fewer, more = accumulations
    slope_s = max(0.0, more_s - fewer_s) / (more - fewer)
    return more_s + (whole - more) * slope_s


def copied_samples(slots: range, copies: int) -> Sequence[int]:
    """Samples of a micro batch whose slots hold copies of fewer samples, `copies` consecutive slots each."""
    return slots if copies == 1 else [slot // copies for slot in slots]
