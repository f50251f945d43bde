"""Headroom of a configuration: the longest sequence and the largest micro batch that fit in memory."""

import numpy as np
from numpy.typing import NDArray

from shardtune.tuner.prediction.candidates import Candidates
from shardtune.tuner.prediction.evaluation import Evaluation
from shardtune.tuner.prediction.model_shape import ModelShape

# Not `np.unique`, which imports numpy.ma: 20 ms of each `shardtune predict`.
_SEQUENCES = np.array(sorted(set(np.round(np.geomspace(1, 32_768, 160)).tolist()))) * 128.0
_MICRO_BATCHES = np.array(sorted(set(np.round(np.geomspace(1, 4096, 160)).tolist())))


SIZES = 1 + len(_SEQUENCES) + len(_MICRO_BATCHES)
"""Number of sizes at which each candidate's memory is evaluated: its own size, then a list of other sequence lengths
and a list of other micro batches."""


def with_other_sizes(candidates: Candidates) -> Candidates:
    """Table in which each candidate occurs `SIZES` times, for one evaluation of its memory: first unchanged, then with
    rising sequence lengths, then with rising micro batches."""
    # One evaluation of all sizes costs little more than one of a single size.
    count = candidates.size
    sequence, micro_batch = (
        np.broadcast_to(sizes, (count,))[:, np.newaxis] for sizes in (candidates.sequence, candidates.micro_batch)
    )
    copies = candidates.take(np.repeat(np.arange(count), SIZES))
    lengths = np.broadcast_to(_SEQUENCES, (count, len(_SEQUENCES)))
    micro_batches = np.broadcast_to(_MICRO_BATCHES, (count, len(_MICRO_BATCHES)))
    return copies.with_values(
        sequence=np.hstack([sequence, lengths, np.repeat(sequence, len(_MICRO_BATCHES), axis=1)]).ravel(),
        micro_batch=np.hstack([micro_batch, np.repeat(micro_batch, len(_SEQUENCES), axis=1), micro_batches]).ravel(),
    )


def largest_sizes(shape: ModelShape, result: Evaluation, host_bytes: float) -> list[tuple[int, int]]:
    """Longest sequence and largest micro batch with which each candidate fits; 0 if none fits.

    Sizes are tried in rising order, and the first size that does not fit ends the search. `result`: predicted memory of
    all sizes. `host_bytes`: host memory that each rank may fill with offloaded tensors.
    """
    fits = (result.fits & (result.memory.host <= host_bytes)).reshape(-1, SIZES)
    return [_largest(shape, row[1:], row[0]) for row in fits]


def _largest(shape: ModelShape, fits: NDArray[np.bool_], own_fits: np.bool_) -> tuple[int, int]:
    longest = _last_fitting(fits[: len(_SEQUENCES)], _SEQUENCES)
    if shape.step_trace is not None:
        # Nothing is known of other lengths.
        longest = shape.step_trace.sequence_length if own_fits else 0
    if shape.max_positions:
        longest = min(longest, shape.max_positions)
    return longest, _last_fitting(fits[len(_SEQUENCES) :], _MICRO_BATCHES)


def _last_fitting(fits: NDArray[np.bool_], values: NDArray[np.float64]) -> int:
    count = len(values) if fits.all() else int(np.argmin(fits))
    return int(values[count - 1]) if count else 0
