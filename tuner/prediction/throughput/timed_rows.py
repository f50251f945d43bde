"""Rows that take a configuration's time where samples have several lengths: padded or packed, of the slowest rank."""

import numpy as np

from shardtune.api_schemas.training.padding import TimedRows, timed_rows
from shardtune.api_schemas.training.sample_plan import Split
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.prediction.candidates import DDP, ZERO, Candidates, Mask


def with_timed_rows(candidates: Candidates, workload: Workload) -> Candidates:
    """Candidates from which time is predicted: their micro batches have the workload's mean length. Memory must not be
    predicted from them, as it follows from the longest micro batch."""
    if workload.data is None:
        return candidates
    columns = np.broadcast_arrays(candidates.micro_batch, candidates.accumulation, _meets_once(candidates))
    rows = np.stack([np.ravel(column) for column in columns], axis=1).astype(int)
    different, places = np.unique(rows, axis=0, return_inverse=True)
    timed = np.array([_timed(workload, *(int(value) for value in row)) for row in different])[np.ravel(places)]
    return candidates.with_values(micro_batch=timed[:, 0], sequence=timed[:, 1])


def _timed(workload: Workload, micro_batch: int, accumulation: int, meets_once: int) -> TimedRows:
    """Number of samples and length in tokens that represent the micro batches into which the global batch is divided;
    the length is the longest one if the division leaves a remainder."""
    assert workload.data is not None
    groups = workload.global_batch // (micro_batch * accumulation)
    split = Split(micro_batch, groups, accumulation)
    if micro_batch * split.micro_batches != workload.global_batch:
        return TimedRows(rows=micro_batch, length=workload.longest_row)
    return timed_rows(
        workload.data,
        workload.global_batch,
        workload.seed,
        split,
        meets_once=bool(meets_once),
        sequence_length=workload.sequence_length,
        attention=workload.attention,
    )


def _meets_once(candidates: Candidates) -> Mask:
    """Whether ranks wait for each other only once a step. This is so for backends that keep whole parameters on each
    rank and reduce gradients after the last micro batch."""
    is_whole = (candidates.backend <= DDP) | ((candidates.backend == ZERO) & (candidates.stage <= 1))
    return np.asarray(is_whole & (candidates.sync_last > 0))
