"""Samples of a cycle of steps by strata of the data's lengths, and rows that are packed with them."""

import bisect
from collections.abc import Sequence

from shardtune.api_schemas.training.sample_lengths import SampleLengths

Row = tuple[int, ...]
"""Lengths of the samples in one packed row, the longest first."""
_MOST_TRIES = 8
"""Maximum number of attempts to find how many samples just fill the packed rows."""


def pack(lengths: Sequence[int], row_length: int) -> list[Row]:
    """Pack samples into rows by best-fit decreasing, as TRL's `bfd` does: from the longest sample on, each goes into
    the row whose free space is the smallest that is enough, or into a new row."""
    rows: list[list[int]] = []
    # Rows by the space that they have left, and these spaces in ascending order.
    by_space: dict[int, list[int]] = {}
    spaces: list[int] = []
    for length in sorted(lengths, reverse=True):
        place = bisect.bisect_left(spaces, length)
        if place < len(spaces):
            space = spaces[place]
            row = by_space[space].pop()
            if not by_space[space]:
                del by_space[space], spaces[place]
        else:
            row, space = len(rows), row_length
            rows.append([])
        rows[row].append(length)
        left = space - length
        if left and left not in by_space:
            bisect.insort(spaces, left)
            by_space[left] = []
        if left:
            by_space[left].append(row)
    return [tuple(row) for row in rows]


def fill_rows(data: SampleLengths, count: int, row_length: int) -> list[Row]:
    """Pack samples into `count` rows. Their lengths are distributed as in the data, and there are as many samples as
    fill the rows."""
    # Enough for rows without any space left, so never too few.
    samples = max(
        count, -(-count * row_length * data.samples // sum(length * number for length, number in data.lengths)) + 1
    )
    rows = pack(strata(data, samples), row_length)
    for _ in range(_MOST_TRIES):
        fewer = max(count, samples * (count + 1) // len(rows))
        if len(rows) <= count + 1 or fewer == samples:
            break
        candidate = pack(strata(data, fewer), row_length)
        if len(candidate) <= count:
            break
        samples, rows = fewer, candidate
    # The emptiest rows are left over: their samples would fill the rows of the next steps.
    return sorted(rows, key=sum, reverse=True)[:count]


def strata(data: SampleLengths, count: int) -> list[int]:
    """Return `count` sample lengths that stand for the data. The samples, ordered by length, are cut into `count` equal
    parts, and each part gives its mean length, so that the mean over the parts is that of the data."""
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
