"""Memory of the fullest stage of a pipeline: its part of the model, and the micro batches that it holds at once."""

import numpy as np

from shardtune.tuner.prediction import stages
from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.footprint import peak
from shardtune.tuner.prediction.footprint.activations import block_bytes
from shardtune.tuner.prediction.footprint.peak import MemoryTable
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.stages import StageLayout, StageShape

_LOG_SOFTMAX = 4.0
"""Bytes that the loss of a micro batch keeps of each logit until its backward."""


def peak_memory(
    shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, device: str = "cuda"
) -> MemoryTable:
    """Memory of one rank for every candidate; with stages, of that which takes most."""

    def table(some: Candidates, cut: StageLayout) -> MemoryTable:
        if cut.ranks == 1:
            return peak.peak_memory(shape, some, dtypes, impl, device)
        found = []
        for stage in stages.of(shape, cut):
            # The first backward of a step finds no gradients, and the most micro batches; those behind it find both.
            first, behind = in_flight(stage, some)
            for one, flights in ((some.with_values(accumulation=1), first), (some, behind)):
                beside = _beside(stage, some, dtypes, impl, flights)
                found.append(peak.peak_memory(stage, one, dtypes, impl, device, *beside))
        return stages.fullest(found, lambda one: one.allocated)

    return stages.in_groups(c, table)


def in_flight(stage: StageShape, c: Candidates) -> tuple[Array, Array]:
    """Micro batches whose backward is still to come, the one in work included: during the first backward of a step, and at most
    during those behind it. Of a rank with several stages, parts of them by its blocks.

    1F1B: arXiv:2006.09503, section 3. Interleaved: arXiv:2104.04473, section 2.2, with torch's rounds for any number of micro
    batches (2.13, `_get_warmup_ops`); with zero bubble each rank begins as much less as it puts off gradients of weights
    (`_get_1f1b_rank_ops`). In a V: arXiv:2401.10241, section 6 (as 1F1B's first rank), and one part more under DualPipeV
    (github.com/deepseek-ai/DualPipe).
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


def _beside(
    stage: StageShape, c: Candidates, dtypes: Dtypes, impl: Implementation, flights: Array
) -> tuple[Array, Array]:
    """Bytes of other micro batches that wait for their backward, and of buffers that hidden states and gradients come in.

    torch 2.13 has a buffer for each micro batch of a step, from the first step on, and where a rank has several stages it keeps
    what was sent until the step's end.
    """
    boundary = c.tokens * stage.hidden * dtypes.under(impl).compute
    virtual = stage.cut.virtual
    before, behind = float(virtual - stage.is_first), float(virtual - stage.is_last)
    all_of_step = np.maximum(c.accumulation, 1.0)
    held = (flights - 1.0) * block_bytes(stage, c, dtypes, impl).kept(c, stage.layers)
    # What a stage hands on is kept with its graph; what it was handed lies in a buffer, and is counted there.
    held = held + flights * boundary * (behind - before)
    # Under other schedules the head's backward follows its forward, but for gradients of weights that come later.
    late = np.minimum(float(stage.cut.ranks), all_of_step)
    losses = {"gpipe": flights, "interleaved_zero_bubble": late}.get(stage.cut.schedule, 1.0)
    held = held + (losses - 1.0) * c.tokens * stage.vocab * _LOG_SOFTMAX
    times = 1.0 if virtual == 1 else 2.0
    return held, times * all_of_step * boundary * (before + behind)
