"""Plan of the samples that all trials of a study train on: a pure function of lengths, global batch and seed.

A few steps form a cycle that repeats. Its lengths are strata of the histogram, in an order that the seed decides. Every
timed window holds whole cycles, so that all trials are timed on the same mix of lengths.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from shardtune.api_schemas.training.sample_lengths import SampleLengths

PEAK_STEP = 1
"""Step whose micro batches all have the longest shape of an epoch. Memory is recorded in it: the optimizer's state
exists from the end of the step before."""
_FEWEST_SAMPLES = 64
"""Least number of samples in a cycle, as far as its number of steps allows."""
_MOST_MISSING = 0.2
"""Fraction by which the attention per token of the timed steps may be below the data's without a note."""
_MOST_STEPS = 4
"""Maximum number of steps in a cycle: a window of small global batches takes as many times as long."""


class Split(NamedTuple):
    """Division of a global batch among groups of ranks and their micro batches."""

    micro_batch: int
    """Samples of one micro batch."""
    groups: int
    """Groups of ranks that train on different samples."""
    accumulation: int
    """Micro batches of each group in a step."""

    @property
    def micro_batches(self) -> int:
        """Number of micro batches of all groups in a step."""
        return self.groups * self.accumulation


@dataclass(frozen=True)
class SamplePlan:
    """Samples of a study's steps, each known by its index in the step's global batch."""

    data: SampleLengths
    cycle: tuple[tuple[int, ...], ...]
    """Lengths of the samples of each step of the cycle, by index."""

    @property
    def steps(self) -> int:
        """Number of steps of the cycle."""
        return len(self.cycle)

    @property
    def timed_steps(self) -> range:
        """Steps that hold the cycle once, without the one whose memory is recorded."""
        return range(PEAK_STEP + 1, PEAK_STEP + 1 + self.steps)

    def lengths(self, step: int) -> Sequence[int]:
        """Lengths of a step's samples, by index in its global batch."""
        return self._peak_lengths if step == PEAK_STEP else self.cycle[step % self.steps]

    @cached_property
    def _peak_lengths(self) -> tuple[int, ...]:
        # Two lengths in turn: a micro batch without any padding may take less memory, since its mask is left out.
        longest = self.data.longest
        other = longest if len(self.data.lengths) == 1 else max(longest - 1, self.data.lengths[0][0])
        return tuple(other if index % 2 else longest for index in range(len(self.cycle[0])))

    def samples(self, step: int, split: Split, group: int, micro: int) -> Sequence[int]:
        """Indices of the samples in the `micro`-th micro batch of a group of ranks. All groups and micro batches together
        hold each sample once."""
        size = split.micro_batch
        if self.data.layout == "grouped" and step != PEAK_STEP:
            # Ranks wait for each other: those that run at the same time get neighbours in the order of lengths.
            start = (micro * split.groups + group) * size
            return self._by_length[step % self.steps][start : start + size]
        start = (group * split.accumulation + micro) * size
        return range(start, start + size)

    @cached_property
    def _by_length(self) -> tuple[tuple[int, ...], ...]:
        """Indices of each step's samples from the longest to the shortest."""
        return tuple(tuple(sorted(range(len(step)), key=step.__getitem__, reverse=True)) for step in self.cycle)

    @cached_property
    def real_tokens(self) -> float:
        """Mean number of tokens in a step of the cycle that are no padding."""
        return sum(map(sum, self.cycle)) / self.steps

    @cached_property
    def attended(self) -> float:
        """Length whose cost of attention per token is the cycle's mean: the mean length, weighted by tokens."""
        return sum(length * length for step in self.cycle for length in step) / (self.real_tokens * self.steps)

    @property
    def note(self) -> str | None:
        """Sentence on samples too rare for the timed steps; None where these attend over as much as the data."""
        missing = 1 - self.attended / self.data.attended
        if missing < _MOST_MISSING:
            return None
        return (
            f"data: the timed steps hold {self.steps * len(self.cycle[0])} samples, too few for the rarest long ones "
            f"({self.data.longest:,} tokens): their attention per token is {missing:.0%} below the data's, so speeds are "
            "those without such samples; memory is that with them. A larger global_batch times more of them"
        )

    @cached_property
    def digest(self) -> str:
        """Hash of the samples' lengths in order, equal for trials of the same samples."""
        return hashlib.sha256(repr(self.cycle).encode()).hexdigest()[:16]

    def padded_lengths(self, step: int, split: Split) -> list[list[int]]:
        """Number of tokens in each row of a step's micro batches, by group and micro batch."""
        lengths = self.lengths(step)
        return [
            [
                self.data.padded(max(lengths[index] for index in self.samples(step, split, group, micro)))
                for micro in range(split.accumulation)
            ]
            for group in range(split.groups)
        ]


@lru_cache(maxsize=64)
def plan_samples(data: SampleLengths, global_batch: int, seed: int) -> SamplePlan:
    """Plan the samples of a study's steps."""
    steps = max(1, min(_MOST_STEPS, -(-_FEWEST_SAMPLES // global_batch)))
    strata = _strata(data, steps * global_batch)
    order = sorted(range(len(strata)), key=lambda index: hashlib.blake2b(f"{seed}.{index}".encode()).digest())
    shuffled = [strata[index] for index in order]
    cycle = (tuple(shuffled[step * global_batch : (step + 1) * global_batch]) for step in range(steps))
    return SamplePlan(data, tuple(cycle))


def _strata(data: SampleLengths, count: int) -> list[int]:
    """Mean length of each of `count` equal parts of the samples in ascending order, so that their mean is the data's."""
    bins, samples = iter(data.lengths), data.samples
    length, left = next(bins)
    # Whole numbers alone: a part has `samples` units of 1 / count of a sample.
    left *= count
    strata, rounding = list[int](), 0.0
    for _ in range(count):
        needed, tokens = samples, 0
        while needed:
            if not left:
                length, left = next(bins)
                left *= count
            taken = min(left, needed)
            tokens, left, needed = tokens + taken * length, left - taken, needed - taken
        exact = tokens / samples + rounding
        strata.append(min(data.longest, max(data.lengths[0][0], round(exact))))
        rounding = exact - strata[-1]
    return strata
