"""Padding of a configuration's steps: tokens that ranks compute beyond the samples' own, and the waiting of ranks with
shorter micro batches."""

from functools import lru_cache
from typing import NamedTuple

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.training.sample_lengths import SampleLengths
from shardtune.api_schemas.training.sample_plan import PackedPlan, SamplePlan, Split, plan_samples

FLASH = "flash_attention_2"
"""Name of the attention implementation that knows where packed samples begin and end, and computes no scores between
different samples."""
_MOST_TOKENS = 1e18


class Padding(Schema):
    """Tokens of a run's steps if samples differ in length. Each figure is a mean over the steps until the sequence of
    samples repeats."""

    samples: str = Field(max_length=64, pattern=r"^[0-9a-f]+$", examples=["85516b4aad773dc2"])
    """Hash of the samples' lengths in their order. All trials of a study have the same hash, because they train the
    same samples."""
    cycle_steps: int = Field(ge=1, le=1000)
    """Number of steps after which the lengths of the samples repeat. Timed windows (groups of steps timed together)
    hold whole cycles of this length."""
    real_tokens: float = Field(gt=0, le=_MOST_TOKENS)
    """Number of tokens in a step without padding. Only these tokens count in speeds."""
    computed_tokens: float = Field(gt=0, le=_MOST_TOKENS)
    """Number of tokens in a step including padding, over all ranks."""
    waited_tokens: float = Field(ge=0, le=_MOST_TOKENS)
    """Tokens that the ranks could compute in the time in which they wait for the rank with the longest micro batch. The
    number is a sum over the ranks and over the micro batches of one step."""

    @property
    def padding_fraction(self) -> float:
        """Fraction of the computed tokens that is padding."""
        return 1.0 - self.real_tokens / self.computed_tokens

    @property
    def waiting_fraction(self) -> float:
        """Fraction of a step in which ranks wait for the rank with the longest micro batch, if a micro batch's time is
        proportional to its tokens."""
        return self.waited_tokens / (self.computed_tokens + self.waited_tokens)


class TimedRows(NamedTuple):
    """Micro batch of rows of equal length that takes as long as a configuration's mean micro batch. It has as many
    tokens, and the same sum of squared row lengths, to which the cost of attention is proportional."""

    rows: float
    length: float


def padding_of(plan: SamplePlan, split: Split) -> Padding:
    """Measure the padding of the plan's timed steps. `split` says how each step's samples are divided into micro
    batches."""
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
def timed_rows(
    data: SampleLengths,
    global_batch: int,
    seed: int,
    split: Split,
    *,
    meets_once: bool,
    sequence_length: int = 0,
    attention: str = "sdpa",
) -> TimedRows:
    """Return a micro batch of rows of equal length that takes as long as the mean micro batch of the slowest rank.

    Args:
        meets_once: whether ranks wait for each other once a step, not in every micro batch.
        sequence_length: number of tokens of a packed row.
        attention: implementation of attention, which decides the scores that a packed row costs.
    """
    plan = plan_samples(data, global_batch, seed, sequence_length)
    if isinstance(plan, PackedPlan):
        return _packed_rows(plan, split, meets_once, attention)
    tokens = squares = 0
    for step in plan.timed_steps:
        by_group = plan.padded_lengths(step, split)
        slowest = _slowest(by_group, meets_once)
        tokens += sum(slowest)
        squares += sum(length * length for length in slowest)
    length = squares / tokens
    mean = tokens / (plan.steps * split.accumulation)
    return TimedRows(rows=split.micro_batch * mean / length, length=length)


def _packed_rows(plan: PackedPlan, split: Split, meets_once: bool, attention: str) -> TimedRows:
    """Return the equal-row micro batch for packed samples. All packed rows have one length, so ranks differ in time
    only if the attention kernel computes the scores of each sample alone."""
    if attention != FLASH:
        # A causal kernel leaves out half of the scores; with a mask of samples, sdpa computes all of the row's.
        scores = 2 if attention == "sdpa" else 1
        return TimedRows(rows=split.micro_batch / scores, length=plan.row_length * scores)
    tokens = split.micro_batch * plan.row_length
    squares = sum(sum(_slowest(plan.squared_lengths(step, split), meets_once)) for step in plan.timed_steps)
    length = squares / (plan.steps * split.accumulation) / tokens
    return TimedRows(rows=tokens / length, length=length)


def _slowest(by_group: list[list[int]], meets_once: bool) -> list[int]:
    """Return the work of each micro batch on the slowest rank, given the work of each group's micro batches."""
    return max(by_group, key=sum) if meets_once else [max(column) for column in zip(*by_group, strict=True)]
