"""Memory of a pipeline's fullest stage: its part of the model, and the micro batches whose activations it keeps at
once."""

import numpy as np

from shardtune.tuner.prediction import stages
from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.footprint import peak
from shardtune.tuner.prediction.footprint.activations import block_bytes
from shardtune.tuner.prediction.footprint.peak import MemoryTable
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.stages import StageLayout, StageShape

_LOG_SOFTMAX = 4.0
"""Bytes per logit that the loss of a micro batch keeps until that micro batch's backward."""


def peak_memory(
    shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, device: str = "cuda"
) -> MemoryTable:
    """Predict the memory of one rank for every candidate; with pipeline stages, of the rank that uses most."""

    def table(subset: Candidates, cut: StageLayout) -> MemoryTable:
        if cut.ranks == 1:
            return peak.peak_memory(shape, subset, dtypes, impl, device)
        tables = []
        for stage in stages.rank_shapes(shape, cut, impl.stages_by_cost):
            # The first backward of a step has most micro batches and no gradients; later ones have both.
            first, behind = in_flight(stage, subset)
            for variant, in_flight_count in ((subset.with_values(accumulation=1), first), (subset, behind)):
                waiting_bytes = _waiting_and_buffer_bytes(stage, subset, dtypes, impl, in_flight_count)
                tables.append(peak.peak_memory(stage, variant, dtypes, impl, device, *waiting_bytes))
        return stages.table_of_fullest_stage(tables, lambda table: table.allocated)

    return stages.in_groups(c, table)


def in_flight(stage: StageShape, c: Candidates) -> tuple[Array, Array]:
    """Number of micro batches on a pipeline rank whose backward is still to run, the current one included.

    Returns the number during the first backward of a step, and the largest number during later ones. On a rank with
    several stages, a micro batch's pass through one stage counts as a fraction of a micro batch.

    Sources: 1F1B: arXiv:2006.09503, section 3. Interleaved: arXiv:2104.04473, section 2.2, with torch's rounds for any
    number of micro batches (2.13, `_get_warmup_ops`); with zero bubble each rank starts with fewer, by the number of
    weight gradients that it postpones (`_get_1f1b_rank_ops`). V-shaped schedules: arXiv:2401.10241, section 6 (each
    rank as many as 1F1B's first rank), and one stage's part more under DualPipeV (github.com/deepseek-ai/DualPipe).
    """
    all_of_step = np.maximum(c.accumulation, 1.0)
    ranks, virtual, schedule = stage.cut
    behind = ranks - 1.0 - stage.rank
    of_round = all_of_step / np.maximum(1.0, np.floor(all_of_step / ranks))
    at_once = {
        "1f1b": np.asarray(behind + 1.0),
        "gpipe": all_of_step,
        "interleaved_1f1b": (virtual - 1.0) * of_round + 2.0 * behind + 1.0,
        "interleaved_zero_bubble": (virtual - 1.0) * of_round + ranks,
        "zbv_zero_bubble": np.asarray(2.0 * ranks),
        "dual_pipe_v": np.asarray(2.0 * ranks + 1.0),
    }[schedule]
    parts = virtual * all_of_step
    return np.minimum(at_once, parts) / virtual, np.minimum(at_once, np.maximum(parts - 1.0, 1.0)) / virtual


def _waiting_and_buffer_bytes(
    stage: StageShape, c: Candidates, dtypes: Dtypes, impl: Implementation, in_flight_count: Array
) -> tuple[Array, Array]:
    """Bytes of the activations of other micro batches that wait for backward, and bytes of the buffers in which stages
    receive hidden states and gradients."""
    # torch 2.13 has a buffer for each micro batch of a step, from the first step on, and where a rank has several
    # stages it keeps what was sent until the step's end.
    boundary = c.tokens * stage.hidden * dtypes.under(impl).compute
    virtual = stage.cut.virtual
    before, behind = float(virtual - stage.is_first), float(virtual - stage.is_last)
    all_of_step = np.maximum(c.accumulation, 1.0)
    waiting = (in_flight_count - 1.0) * block_bytes(stage, c, dtypes, impl).kept(c, stage.layers)
    # A stage's output is kept with its graph; its input is in a buffer, and is counted there.
    waiting = waiting + in_flight_count * boundary * (behind - before)
    # Under other schedules the head's backward follows its forward, but for gradients of weights that come later.
    late = np.minimum(float(stage.cut.ranks), all_of_step)
    losses = {"gpipe": in_flight_count, "interleaved_zero_bubble": late}.get(stage.cut.schedule, 1.0)
    # A loss in chunks keeps no logits until its backward.
    kept_logits = np.where(c.loss_chunk > 0, 0.0, c.tokens * stage.vocab * _LOG_SOFTMAX)
    waiting = waiting + (losses - 1.0) * kept_logits
    times = 1.0 if virtual == 1 else 2.0
    return waiting, times * all_of_step * boundary * (before + behind)
