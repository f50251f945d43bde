"""Predictions of layouts by the product: each table's rows become the predictor's candidates."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.parallel.layout import Layout, Training
from benchmarks.parallel.tables import Measured
from shardtune.tuner.prediction.candidates import DDP, FULL, NONE, ZERO, Candidates, from_rows
from shardtune.tuner.prediction.footprint import peak_memory
from shardtune.tuner.prediction.throughput import step_times


@dataclass(frozen=True)
class Predicted:
    """Prediction of one layout."""

    seconds: float
    """Seconds of one optimizer step."""
    bytes_needed: float
    """Bytes that a GPU must have: the tensors at the peak, the CUDA context and the communication library."""


def predict(rows: Sequence[Measured]) -> list[Predicted]:
    """Predictions of rows, in their order."""
    predictions: dict[int, Predicted] = {}
    for training, numbers in _by_training(rows):
        candidates = _candidates(training, [rows[number].layout for number in numbers])
        program = training.program
        facts = (training.shape, candidates, program.dtypes, program.implementation)
        seconds = step_times(*facts, training.rates, training.network).total
        memory = peak_memory(*facts)
        # Without fragmentation, as in `Evaluation.fits`: where memory is short, the allocator gives cached blocks back.
        needed = memory.allocated + memory.context + memory.communication
        for number, *values in zip(
            numbers, np.broadcast_to(seconds, len(numbers)), np.broadcast_to(needed, len(numbers)), strict=True
        ):
            predictions[number] = Predicted(*map(float, values))
    return [predictions[number] for number in range(len(rows))]


def _by_training(rows: Sequence[Measured]) -> Iterable[tuple[Training, list[int]]]:
    groups: dict[Training, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[row.training].append(number)
    return groups.items()


def candidate_rows(training: Training, layouts: Sequence[Layout]) -> list[dict[str, float]]:
    """Fields of the predictor's candidates, for each layout."""
    return [_row(training, layout) for layout in layouts]


def _candidates(training: Training, layouts: Sequence[Layout]) -> Candidates:
    return from_rows(candidate_rows(training, layouts))


def _row(training: Training, layout: Layout) -> dict[str, float]:
    shared: dict[str, float] = {
        "sequence": training.sequence,
        "micro_batch": layout.micro_batch,
        "tensor": layout.tp,
        "stages": layout.pp,
        "accumulation": layout.micro_batches(training),
        "checkpointing": FULL if layout.checkpointing else NONE,
    }
    if layout.zero:
        return shared | {"backend": ZERO, "stage": 1, "shard": layout.dp, "regather": layout.dp}
    return shared | {"backend": DDP, "replicate": layout.dp}
