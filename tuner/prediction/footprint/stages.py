"""Memory of the fullest stage of a pipeline: its part of the model, and the micro batches that it holds at once."""

import numpy as np

from shardtune.tuner.prediction import stages
from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.footprint import peak
from shardtune.tuner.prediction.footprint.activations import block_bytes
from shardtune.tuner.prediction.footprint.peak import MemoryTable
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.stages import StageShape

_LOG_SOFTMAX = 4.0
"""Bytes that the loss of a micro batch keeps of each logit until its backward."""


def peak_memory(
    shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, device: str = "cuda"
) -> MemoryTable:
    """Memory of one rank for every candidate; with stages, of that which takes most."""

    def table(some: Candidates, count: int) -> MemoryTable:
        if count == 1:
            return peak.peak_memory(shape, some, dtypes, impl, device)
        found = []
        for stage in stages.of(shape, count):
            # The first backward of a step finds no gradients, and the most micro batches; those behind it find both.
            first, behind = in_flight(stage, some)
            for one, flights in ((some.with_values(accumulation=1), first), (some, behind)):
                beside = _beside(stage, some, dtypes, impl, flights)
                found.append(peak.peak_memory(stage, one, dtypes, impl, device, *beside))
        return stages.fullest(found, lambda one: one.allocated)

    return stages.in_groups(c, table)


def in_flight(stage: StageShape, c: Candidates) -> tuple[Array, Array]:
    """Micro batches whose backward is still to come, the one in work included (arXiv:2006.09503, section 3): during the first
    backward of a step, and at most during those behind it."""
    all_of_step = np.maximum(c.accumulation, 1.0)
    at_once = np.where(c.gpipe > 0, all_of_step, stage.count - stage.index)
    return np.minimum(at_once, all_of_step), np.minimum(at_once, np.maximum(all_of_step - 1.0, 1.0))


def _beside(
    stage: StageShape, c: Candidates, dtypes: Dtypes, impl: Implementation, flights: Array
) -> tuple[Array, Array]:
    """Bytes of other micro batches that wait for their backward, and of buffers that hidden states and gradients come in.

    torch 2.13 has a buffer for each micro batch of a step, from the first step on.
    """
    boundary = c.tokens * stage.hidden * dtypes.under(impl).compute
    before, behind = float(not stage.is_first), float(not stage.is_last)
    held = (flights - 1.0) * block_bytes(stage, c, dtypes, impl).kept(c, stage.layers)
    # What a stage hands on is kept with its graph; what it was handed lies in a buffer, and is counted there.
    held = held + flights * boundary * (behind - before)
    held = held + (flights - 1.0) * c.tokens * stage.vocab * _LOG_SOFTMAX
    return held, np.maximum(c.accumulation, 1.0) * boundary * (before + behind)
