"""Schema of the lengths of a training's samples, and of how samples of several lengths share micro batches.

Lengths belong to the workload: all trials of a study train on the same samples in the same order.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from shardtune.api_schemas.base import Schema

MOST_BINS = 256
"""Maximum number of bins of a histogram. If there are more distinct lengths, neighbouring ones are merged."""
MOST_ENTRIES, MOST_PAIRS = 48_000, 16_000
"""Maximum number of lengths, and of pairs of a length and its number of samples, in one request. A request body with
more is rejected before it is parsed (`service.http.pre_body_auth`), because it has too many separators; a pair has
three of them."""
MOST_SAMPLES_COUNTED = 10**12
MOST_PLANNED = 65_536
"""Maximum number of samples in a step if the samples differ in length."""
SHORTEST, LONGEST = 2, 4_194_304
"""Minimum and maximum length of a sample in tokens. A sample of one token has no next token to learn."""
_MOST = 10**18
"""Largest absolute value that is read as a number at all. Longer numbers are rejected without repeating them in the
error."""
DATA_SINCE = 2
"""First protocol version whose workers can train samples that differ in length."""
PACKED = "packed"
"""Name of the layout that puts several samples into one row."""

Layout = Literal["padded", "grouped", "packed"]
LAYOUTS: tuple[str, ...] = get_args(Layout)
Bin = tuple[int, int]
"""Pair of a length in tokens and the number of samples that have this length."""


def merge_lengths(counts: Mapping[int, int]) -> tuple[Bin, ...]:
    """Return a histogram of at most `MOST_BINS` bins in ascending order of length. A merged bin has the mean of its
    lengths. The shortest and the longest length are never merged."""
    bins = sorted(counts.items())
    if len(bins) <= MOST_BINS:
        return tuple(bins)
    shortest, *between, longest = bins
    # By tokens, not by samples: long samples decide padding and memory.
    tokens_per_bin = sum(length * count for length, count in between) / (MOST_BINS - 2)
    groups: dict[int, list[Bin]] = {}
    tokens = 0
    for length, count in between:
        groups.setdefault(int(tokens / tokens_per_bin), []).append((length, count))
        tokens += length * count
    merged: Counter[int] = Counter(dict([shortest, longest]))
    for group in groups.values():
        samples = sum(count for _, count in group)
        merged[round(sum(length * count for length, count in group) / samples)] += samples
    return tuple(sorted(merged.items()))


def count_lengths(entries: Iterable[Any]) -> Counter[int]:
    """Return the number of samples of each length, counted from a list of lengths or of pairs of length and number of
    samples.

    Raises:
        ValueError: names the entry, its value and the remedy.
    """
    counts: Counter[int] = Counter()
    for index, entry in enumerate(entries):
        pair = isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) == 2
        length, count = entry if pair else (entry, 1)
        counts[checked_length(length, f"lengths[{index}]")] += _checked_count(count, f"lengths[{index}]")
    return counts


def checked_length(value: Any, name: str) -> int:
    """Return a value if it is a valid length of a sample. `name` is the name of the field in the error.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    length = _integer(value)
    if length is None:
        raise ValueError(f"{name} ({value!r:.60}) must be a number of tokens, or [tokens, samples]; correct it")
    if length < SHORTEST:
        raise ValueError(
            f"{name} ({length}) is below {SHORTEST} tokens, which leaves no next token to learn; leave it out"
        )
    if length > LONGEST:
        raise ValueError(f"{name} ({length}) is above {LONGEST} tokens; cut the sample as your training does")
    return length


def _checked_count(value: Any, name: str) -> int:
    count = _integer(value)
    if count is None or not 1 <= count <= MOST_SAMPLES_COUNTED:
        raise ValueError(
            f"{name} has {value!r:.60} samples; give 1 to {MOST_SAMPLES_COUNTED:,}, or leave the length out"
        )
    return count


def _integer(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # An integer is compared as one: no float holds the largest that JSON can write.
    if abs(value) > _MOST or (isinstance(value, float) and not math.isfinite(value)) or int(value) != value:
        return None
    return int(value)


def _histogram(value: object) -> object:
    """Return the histogram of a list of lengths, or of pairs of length and number of samples."""
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise ValueError(
            f"lengths ({value!r:.60}) must be a list of lengths such as [512, 37], or of [length, samples] pairs; the "
            "command line reads a file of them (--data)"
        )
    if not value:
        raise ValueError("lengths (an empty list) has no samples; give the length of at least one")
    pairs = sum(isinstance(entry, list | tuple) for entry in value)
    if len(value) - pairs + pairs * MOST_ENTRIES // MOST_PAIRS > MOST_ENTRIES:
        raise ValueError(
            f"lengths ({len(value):,} entries) may have {MOST_ENTRIES:,} lengths or {MOST_PAIRS:,} [length, samples] pairs; "
            "count equal lengths into pairs, or give the command line a file of them (--data), which it counts"
        )
    return merge_lengths(count_lengths(value))


class SampleLengths(Schema):
    """Lengths of the samples that a training sees, and their arrangement in micro batches."""

    lengths: Annotated[
        tuple[Bin, ...],
        BeforeValidator(_histogram, json_schema_input_type=list[int | tuple[int, int]]),
        Field(examples=[[[64, 300], [512, 40], [4096, 1]]]),
    ]
    """Histogram of sample lengths in tokens: pairs of a length and its number of samples. A plain list of lengths is
    counted. If there are more than 256 different lengths, neighbouring ones are merged."""
    layout: Layout = "padded"
    """Arrangement of samples in micro batches. `padded` takes the samples as they come, `grouped` first sorts the
    samples of each step by length; both train a step on the same samples, and pad a micro batch to its longest one.
    `packed` puts several whole samples into each row of `sequence_length` tokens, in which no sample attends to
    another. `global_batch` then counts rows, so that a step trains on more samples."""
    pad_to_multiple_of: int = Field(default=1, ge=1, le=4096)
    """Number to a multiple of which a micro batch is padded: its longest sample, in tokens, is rounded up. Larger
    numbers give fewer different shapes and more padding."""

    @model_validator(mode="after")
    def _rows_of_one_width(self) -> Self:
        if self.is_packed and self.pad_to_multiple_of > 1:
            raise ValueError(
                f"pad_to_multiple_of ({self.pad_to_multiple_of}) with layout ({PACKED!r}): each row has sequence_length tokens; "
                "leave it out, and make sequence_length such a multiple"
            )
        return self

    @property
    def is_packed(self) -> bool:
        """Whether several samples share a row (layout `packed`)."""
        return self.layout == PACKED

    @property
    def samples(self) -> int:
        """Number of samples in the histogram of lengths."""
        return sum(count for _, count in self.lengths)

    @property
    def mean(self) -> float:
        """Mean length of a sample in tokens."""
        return sum(length * count for length, count in self.lengths) / self.samples

    @property
    def attended(self) -> float:
        """Sample length at which attention costs as much per token as it does on average in the data: the mean of the
        lengths, weighted by their tokens."""
        squares = sum(length * length * count for length, count in self.lengths)
        return squares / (self.mean * self.samples)

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sample."""
        return self.lengths[-1][0]

    def padded(self, length: int) -> int:
        """Return the number of tokens to which a micro batch is padded, if its longest sample has `length` tokens."""
        return -(-length // self.pad_to_multiple_of) * self.pad_to_multiple_of

    def describe(self) -> str:
        """Return a short description of the samples' lengths for people, such as `5 to 4,096 tokens (mean 312),
        grouped`."""
        shortest = self.lengths[0][0]
        spread = f"{self.longest:,}" if shortest == self.longest else f"{shortest:,} to {self.longest:,}"
        multiple = f", padded to multiples of {self.pad_to_multiple_of}" if self.pad_to_multiple_of > 1 else ""
        return f"{spread} tokens (mean {self.mean:,.0f}), {self.layout}{multiple}"


def check_lengths(data: SampleLengths | None, sequence_length: int | None, global_batch: int | None) -> None:
    """Reject samples that are longer than the sequence length, and steps with more samples than can be planned one by
    one. If the sequence length or the global batch is None, it was not stated and is not checked.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if data is None:
        return
    if global_batch is not None and global_batch > MOST_PLANNED:
        unit = "rows, whose samples are" if data.is_packed else "samples, each of which is"
        raise ValueError(
            f"global_batch ({global_batch}) with data may be at most {MOST_PLANNED} {unit} planned; lower it, or leave out data"
        )
    if sequence_length is None:
        return
    if data.longest > sequence_length:
        raise ValueError(
            f"data.lengths (longest {data.longest}) exceeds sequence_length ({sequence_length}); raise sequence_length to "
            f"{data.longest}, or cut longer samples as your training does"
        )
    if data.padded(data.longest) > sequence_length:
        raise ValueError(
            f"data.pad_to_multiple_of ({data.pad_to_multiple_of}) pads the longest sample ({data.longest}) to "
            f"{data.padded(data.longest)} tokens, above sequence_length ({sequence_length}); raise sequence_length to that"
        )
    if data.is_packed and global_batch is not None:
        _check_packed_samples(data, sequence_length, global_batch)


def _check_packed_samples(data: SampleLengths, sequence_length: int, global_batch: int) -> None:
    per_row = max(1.0, sequence_length / data.mean)
    if global_batch * per_row > MOST_PLANNED:
        raise ValueError(
            f"global_batch ({global_batch}) packs about {global_batch * per_row:,.0f} samples into a step, {per_row:,.0f} into "
            f"each row of sequence_length ({sequence_length}); at most {MOST_PLANNED} are planned: use at most "
            f"{int(MOST_PLANNED / per_row)}, or shorter rows"
        )
