"""Padding of a configuration's steps: tokens that ranks compute beyond the samples' own, and the waiting of ranks with
shorter micro batches."""

from functools import lru_cache
from typing import NamedTuple

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.training.sample_lengths import SampleLengths
from shardtune.api_schemas.training.sample_plan import SamplePlan, Split, plan_samples

_MOST_TOKENS = 1e18


class Padding(Schema):
    """Tokens of a run's steps with samples of several lengths; each figure is a mean over the sample plan's cycle."""

    samples: str = Field(max_length=64, pattern=r"^[0-9a-f]+$", examples=["85516b4aad773dc2"])
    """Hash of the samples' lengths in order: the same in all trials of a study."""
    cycle_steps: int = Field(ge=1, le=1000)
    """Number of steps after which the samples' lengths repeat; timed windows hold whole cycles."""
    real_tokens: float = Field(gt=0, le=_MOST_TOKENS)
    """Tokens of a step that are no padding: those that speeds count."""
    computed_tokens: float = Field(gt=0, le=_MOST_TOKENS)
    """Tokens of a step with padding, over all ranks."""
    waited_tokens: float = Field(ge=0, le=_MOST_TOKENS)
    """Tokens that ranks could compute while they wait for the rank with the longest micro batch, summed over ranks and
    micro batches of a step."""

    @property
    def padding_fraction(self) -> float:
        """Fraction of the computed tokens that is padding."""
        return 1.0 - self.real_tokens / self.computed_tokens

    @property
    def waiting_fraction(self) -> float:
        """Fraction of a step in which ranks wait for the longest micro batch, if time follows tokens."""
        return self.waited_tokens / (self.computed_tokens + self.waited_tokens)


class TimedRows(NamedTuple):
    """Micro batch of equal rows that takes as long as a configuration's mean micro batch: as many tokens and, summed over
    rows, as many squares of lengths."""

    rows: float
    length: float


def padding_of(plan: SamplePlan, split: Split) -> Padding:
    """Measure the padding of the plan's timed steps, divided into micro batches by `split`."""
    computed = waited = 0
    for step in plan.timed_steps:
        by_group = plan.padded_lengths(step, split)
        computed += split.micro_batch * sum(map(sum, by_group))
        waited += split.micro_batch * sum(
            split.groups * max(column) - sum(column) for column in zip(*by_group, strict=True)
        )
    return Padding(
        samples=plan.digest,
        cycle_steps=plan.steps,
        real_tokens=plan.real_tokens,
        computed_tokens=computed / plan.steps,
        waited_tokens=waited / plan.steps,
    )


@lru_cache(maxsize=4096)
def timed_rows(data: SampleLengths, global_batch: int, seed: int, split: Split, *, meets_once: bool) -> TimedRows:
    """Micro batch that takes as long as the slowest rank's mean one.

    Args:
        meets_once: whether ranks wait for each other once a step, not in every micro batch.
    """
    plan = plan_samples(data, global_batch, seed)
    tokens = squares = 0
    for step in plan.timed_steps:
        by_group = plan.padded_lengths(step, split)
        slowest = max(by_group, key=sum) if meets_once else [max(column) for column in zip(*by_group, strict=True)]
        tokens += sum(slowest)
        squares += sum(length * length for length in slowest)
    length = squares / tokens
    mean = tokens / (plan.steps * split.accumulation)
    return TimedRows(rows=split.micro_batch * mean / length, length=length)
