"""Operations on sets of time intervals on one clock, in whole nanoseconds, as numpy arrays of starts and ends."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Spans = NDArray[np.int64]
"""Array of time intervals with shape (n, 2): each row is a start and an end. Intervals may overlap and need not be
sorted."""


def spans(pairs: Sequence[tuple[int, int]] | Sequence[int]) -> Spans:
    """Return an array of time intervals from (start, end) pairs, or from a flat sequence in which starts and ends
    alternate; an empty array for an empty sequence."""
    return np.asarray(pairs, dtype=np.int64).reshape(-1, 2)


def union(some: Spans) -> Spans:
    """Return the union of time intervals as sorted, disjoint intervals."""
    some = some[some[:, 1] > some[:, 0]]
    if not len(some):
        return some
    some = some[np.argsort(some[:, 0], kind="stable")]
    ends = np.maximum.accumulate(some[:, 1])
    begins_anew = np.concatenate(([True], some[1:, 0] > ends[:-1]))
    last_of_each = np.concatenate((begins_anew[1:], [True]))
    return np.stack((some[begins_anew, 0], ends[last_of_each]), axis=1)


def clip(some: Spans, start: int, end: int) -> Spans:
    """Return the time intervals cut to a window."""
    cut = np.clip(some, start, end)
    return cut[cut[:, 1] > cut[:, 0]]


def contains(ranges: Spans, moments: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each moment whether it lies in one of the time intervals. The end of an interval does not belong to
    it."""
    merged = union(ranges)
    if not len(merged):
        return np.zeros(len(moments), dtype=np.bool_)
    at = np.searchsorted(merged[:, 0], moments, side="right") - 1
    is_inside: NDArray[np.bool_] = (at >= 0) & (moments < merged[np.maximum(at, 0), 1])
    return is_inside


class Segments:
    """Time window that is cut into pieces at each start and end of an interval. The intervals belong to several layers;
    each piece knows which layers are active in it."""

    def __init__(self, layers: Sequence[Spans], start: int, end: int) -> None:
        merged = [union(clip(layer, start, end)) for layer in layers]
        cuts = np.unique(np.concatenate([np.array([start, end], dtype=np.int64), *(layer.ravel() for layer in merged)]))
        self.lengths: NDArray[np.int64] = np.diff(cuts)
        self._cuts = cuts
        self.active = np.zeros((len(layers), len(self.lengths)), dtype=np.bool_)
        for row, layer in zip(self.active, merged, strict=True):
            row[:] = contains(layer, cuts[:-1])

    def time(self, pieces: NDArray[np.bool_]) -> int:
        """Return the total nanoseconds of the selected pieces of the window."""
        return int(self.lengths[pieces].sum())

    def at(self, moments: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the piece that contains each given moment of the window."""
        last = len(self.lengths) - 1
        return np.clip(np.searchsorted(self._cuts, moments, side="right") - 1, 0, last)

    def first_active(self, layers: int) -> NDArray[np.int64]:
        """Return for each piece of the window the index of the first layer that is active, among the first `layers`
        layers. If none of them is active, the index is `layers`."""
        some = self.active[:layers]
        return np.where(some.any(axis=0), np.argmax(some, axis=0), layers)
