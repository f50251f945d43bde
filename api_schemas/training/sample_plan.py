"""Plan of the samples that all trials of a study train on: a pure function of lengths, global batch and seed.

A few steps form a cycle that repeats. Its lengths are strata of the histogram, in an order that the seed decides. Every
timed window holds whole cycles, so that all trials are timed on the same mix of lengths.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeVar

from shardtune.api_schemas.training.sample_lengths import SampleLengths
from shardtune.api_schemas.training.sample_packing.rows import Row, fill_rows, strata

PEAK_STEP = 1
"""Number of the step in which memory is recorded. All its micro batches have the longest shape that occurs in an epoch,
and the optimizer's state exists since the step before it."""
_FEWEST_SAMPLES = 64
"""Minimum number of samples in a cycle (the steps after which the samples repeat). A cycle may have fewer if its number
of steps is limited."""
_MOST_MISSING = 0.2
"""Fraction by which the attention per token may be lower in the timed steps than in the data. If it is lower by more, a
note reports it."""
_MOST_LONGER = 0.1
"""Fraction by which the mean sample of the timed packed rows may be longer than that of the data. If it is longer by
more, a note reports it."""
_MOST_STEPS = 4
"""Maximum number of steps in a cycle (the steps after which the samples repeat). Each timed window contains a whole
cycle, so it may take this many times as long as a step."""
Item = TypeVar("Item")


class Split(NamedTuple):
    """Way in which a global batch is divided: into groups of ranks, and within each group into micro batches."""

    micro_batch: int
    """Samples of one micro batch."""
    groups: int
    """Number of groups of ranks; each group trains on samples of its own."""
    accumulation: int
    """Number of micro batches that each group of ranks trains in one step."""

    @property
    def micro_batches(self) -> int:
        """Number of micro batches of all groups in a step."""
        return self.groups * self.accumulation


@dataclass(frozen=True)
class SamplePlan:
    """Samples of a study's steps. The lengths of the samples repeat after some steps (a cycle), and each sample is
    known by its index in the global batch of its step."""

    data: SampleLengths
    cycle: tuple[tuple[int, ...], ...]
    """Lengths of the samples in each step of the cycle, in the order of their indices in the global batch."""

    @property
    def steps(self) -> int:
        """Number of steps in the cycle, after which the lengths of the samples repeat."""
        return len(self.cycle)

    @property
    def timed_steps(self) -> range:
        """Numbers of the timed steps. They contain each step of the cycle once, and not the step in which memory is
        recorded."""
        return range(PEAK_STEP + 1, PEAK_STEP + 1 + self.steps)

    def lengths(self, step: int) -> Sequence[int]:
        """Return the lengths of a step's samples, in the order of their indices in the global batch."""
        return self._peak_lengths if step == PEAK_STEP else self.cycle[step % self.steps]

    @cached_property
    def _peak_lengths(self) -> tuple[int, ...]:
        # Two lengths in turn: a micro batch without any padding may take less memory, since its mask is left out.
        longest = self.data.longest
        other = longest if len(self.data.lengths) == 1 else max(longest - 1, self.data.lengths[0][0])
        return tuple(other if index % 2 else longest for index in range(len(self.cycle[0])))

    def samples(self, step: int, split: Split, group: int, micro: int) -> Sequence[int]:
        """Return the indices of the samples (or of the packed rows) in micro batch number `micro` of a group of ranks.
        All micro batches of all groups together contain each sample once."""
        size = split.micro_batch
        if self.data.layout == "grouped" and step != PEAK_STEP:
            # Ranks wait for each other: those that run at the same time get neighbours in the order of lengths.
            start = (micro * split.groups + group) * size
            return self._by_length[step % self.steps][start : start + size]
        start = (group * split.accumulation + micro) * size
        return range(start, start + size)

    @cached_property
    def _by_length(self) -> tuple[tuple[int, ...], ...]:
        """Return, for each step, the indices of its samples from the longest to the shortest."""
        return tuple(tuple(sorted(range(len(step)), key=step.__getitem__, reverse=True)) for step in self.cycle)

    @cached_property
    def real_tokens(self) -> float:
        """Mean number of tokens in a step, without padding: the mean over one cycle, after which the lengths repeat."""
        return sum(map(sum, self.cycle)) / self.steps

    @cached_property
    def attended(self) -> float:
        """Sample length at which attention costs as much per token as it does on average in the steps: the mean of the
        lengths, weighted by their tokens."""
        return sum(length * length for step in self.cycle for length in step) / (self.real_tokens * self.steps)

    @property
    def note(self) -> str | None:
        """Return a sentence about samples that are too rare to occur in the timed steps. None if the timed steps have
        about as much attention per token as the data."""
        missing = 1 - self.attended / self.data.attended
        if missing < _MOST_MISSING:
            return None
        return (
            f"data: the timed steps hold {sum(map(len, self.cycle))} samples, too few for the rarest long ones "
            f"({self.data.longest:,} tokens): their attention per token is {missing:.0%} below the data's, so speeds are "
            "those without such samples; memory is that with them. A larger global_batch times more of them"
        )

    @cached_property
    def digest(self) -> str:
        """Hash of the samples' lengths in their order. Trials that train the same samples have the same hash."""
        return hashlib.sha256(repr(self.cycle).encode()).hexdigest()[:16]

    def padded_lengths(self, step: int, split: Split) -> list[list[int]]:
        """Return the number of tokens in each row of a step's micro batches, padding included, by group of ranks and
        micro batch."""
        lengths = self.lengths(step)
        return [
            [
                self.data.padded(max(lengths[index] for index in self.samples(step, split, group, micro)))
                for micro in range(split.accumulation)
            ]
            for group in range(split.groups)
        ]


@dataclass(frozen=True)
class PackedPlan(SamplePlan):
    """Packed rows of a study's steps. Each row holds several samples, a micro batch consists of rows, and each row is
    known by its index in the step."""

    row_length: int
    """Number of tokens in each row. Tokens behind the last sample of a row are padding."""
    packed: tuple[tuple[Row, ...], ...]
    """Packed rows of each step of the cycle (the steps after which the samples repeat)."""

    def rows(self, step: int) -> Sequence[Row]:
        """Return the lengths of the samples in each packed row of a step."""
        return self._peak_rows if step == PEAK_STEP else self.packed[step % self.steps]

    def lengths(self, step: int) -> Sequence[int]:
        """Return the lengths of all samples of a step, row by row."""
        return [length for row in self.rows(step) for length in row]

    @cached_property
    def _peak_rows(self) -> tuple[Row, ...]:
        # All rows have one width, so only the mask differs: there is none where each row of a micro batch is one sample.
        divided = [row for step in self.packed for row in step if len(row) > 1 or sum(row) < self.row_length]
        return (min(divided or self.packed[0], key=len),) * len(self.packed[0])

    def samples(self, step: int, split: Split, group: int, micro: int) -> Sequence[int]:
        """Return the indices of the packed rows in micro batch number `micro` of a group of ranks."""
        start = (group * split.accumulation + micro) * split.micro_batch
        return range(start, start + split.micro_batch)

    @property
    def note(self) -> str | None:
        """Return a sentence about the samples that are missing in the timed rows. None if the samples in the timed rows
        are like those of the data."""
        mean = self.real_tokens * self.steps / sum(map(len, self.cycle))
        longer = mean / self.data.mean - 1
        if longer < _MOST_LONGER:
            return super().note
        return (
            f"data: the {sum(map(len, self.packed))} timed rows lack short samples: theirs have {mean:,.0f} tokens in the mean, "
            f"{longer:.0%} more than the data's ({self.data.mean:,.0f}), so attention takes more of each step. A larger "
            "global_batch holds more of them"
        )

    @cached_property
    def digest(self) -> str:
        """Hash of the packed rows in their order. Trials that train the same samples in the same rows have the same
        hash."""
        return hashlib.sha256(repr((self.row_length, self.packed)).encode()).hexdigest()[:16]

    def padded_lengths(self, step: int, split: Split) -> list[list[int]]:
        """Return the number of tokens in each packed row of a step's micro batches, by group of ranks and micro batch."""
        return [[self.row_length] * split.accumulation for _ in range(split.groups)]

    def squared_lengths(self, step: int, split: Split) -> list[list[int]]:
        """Return the sum of the squared lengths of all samples in each micro batch of a step, by group and micro batch.
        The padding at the end of a row counts as one more sample, because its tokens attend to each other."""
        rows = self.rows(step)
        squares = [sum(length * length for length in row) + (self.row_length - sum(row)) ** 2 for row in rows]
        return [
            [
                sum(squares[index] for index in self.samples(step, split, group, micro))
                for micro in range(split.accumulation)
            ]
            for group in range(split.groups)
        ]


@lru_cache(maxsize=64)
def plan_samples(data: SampleLengths, global_batch: int, seed: int, sequence_length: int = 0) -> SamplePlan:
    """Plan the samples of a study's steps. `sequence_length` is the number of tokens in a packed row; samples that are
    not packed do not need it."""
    if data.is_packed:
        return _plan_rows(data, global_batch, seed, sequence_length)
    steps = _steps_of_cycle(global_batch)
    shuffled = _shuffled(strata(data, steps * global_batch), seed)
    cycle = (tuple(shuffled[step * global_batch : (step + 1) * global_batch]) for step in range(steps))
    return SamplePlan(data, tuple(cycle))


def _plan_rows(data: SampleLengths, global_batch: int, seed: int, row_length: int) -> PackedPlan:
    steps = _steps_of_cycle(int(global_batch * max(1.0, row_length / data.mean)))
    rows = _shuffled(fill_rows(data, steps * global_batch, row_length), seed)
    packed = tuple(tuple(rows[step * global_batch : (step + 1) * global_batch]) for step in range(steps))
    cycle = tuple(tuple(length for row in step for length in row) for step in packed)
    return PackedPlan(data, cycle, row_length, packed)


def _steps_of_cycle(samples: int) -> int:
    """Return the number of steps in a cycle (after which the samples repeat), given the number of samples in a step."""
    return max(1, min(_MOST_STEPS, -(-_FEWEST_SAMPLES // samples)))


def _shuffled(items: Sequence[Item], seed: int) -> list[Item]:
    """Return the items in a random order, which is the same for the same seed."""
    order = sorted(range(len(items)), key=lambda index: hashlib.blake2b(f"{seed}.{index}".encode()).digest())
    return [items[index] for index in order]
