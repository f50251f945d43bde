"""Headroom of a configuration: the longest sequence and the largest micro batch that fit in memory."""

import numpy as np
from numpy.typing import NDArray

from shardtune.tuner.prediction.candidates import Candidates
from shardtune.tuner.prediction.evaluation import Evaluation
from shardtune.tuner.prediction.model_shape import ModelShape

# Not `np.unique`, which imports numpy.ma: 20 ms of each `shardtune predict`.
_SEQUENCES = np.array(sorted(set(np.round(np.geomspace(1, 32_768, 160)).tolist()))) * 128.0
_MICRO_BATCHES = np.array(sorted(set(np.round(np.geomspace(1, 4096, 160)).tolist())))


def with_other_sizes(candidate: Candidates) -> Candidates:
    """Copies of a candidate for one evaluation: the candidate itself, then copies with rising sequence lengths, then
    with rising micro batches."""
    # One evaluation of all sizes costs little more than one of a single size.
    sequence, micro_batch = candidate.sequence.ravel(), candidate.micro_batch.ravel()
    return candidate.with_values(
        sequence=np.concatenate([sequence, _SEQUENCES, np.repeat(sequence, len(_MICRO_BATCHES))]),
        micro_batch=np.concatenate([micro_batch, np.repeat(micro_batch, len(_SEQUENCES)), _MICRO_BATCHES]),
    )


def largest_sizes(shape: ModelShape, result: Evaluation, host_bytes: float) -> tuple[int, int]:
    """Longest sequence and largest micro batch that fit, before the first size that does not; 0 where no size fits.
    `host_bytes`: each rank's part of host memory, which limits what is offloaded."""
    fits = (result.fits & (result.memory.host <= host_bytes))[1:]
    longest = _last_fitting(fits[: len(_SEQUENCES)], _SEQUENCES)
    if shape.step_trace is not None:
        # Nothing is known of other lengths.
        longest = shape.step_trace.sequence_length if result.fits[0] else 0
    if shape.max_positions:
        longest = min(longest, shape.max_positions)
    return longest, _last_fitting(fits[len(_SEQUENCES) :], _MICRO_BATCHES)


def _last_fitting(fits: NDArray[np.bool_], values: NDArray[np.float64]) -> int:
    count = len(values) if fits.all() else int(np.argmin(fits))
    return int(values[count - 1]) if count else 0
