"""Activations of the user's own code, from the trace of one training step."""

import numpy as np

from shardtune.api_schemas.training.step_trace import Scaled, StepTrace
from shardtune.tuner.prediction.candidates import FULL, SELECTIVE, Array, Candidates
from shardtune.tuner.prediction.footprint.block_bytes import BlockBytes
from shardtune.tuner.prediction.model_shape import ModelShape


def block_bytes(trace: StepTrace, c: Candidates) -> BlockBytes:
    """Activation bytes of one block of the user's own code, by its traced step, for each candidate."""
    all_saved, boundary = _of_micro_batch(trace.block, c), _of_micro_batch(trace.boundary, c)
    boundary = np.minimum(boundary, all_saved)
    selective = np.minimum(boundary + _of_micro_batch(trace.selective, c), all_saved)
    checkpointed = np.where(
        c.checkpointing == FULL, boundary, np.where(c.checkpointing == SELECTIVE, selective, all_saved)
    )
    return BlockBytes(checkpointed, all_saved, all_saved, _of_micro_batch(trace.working, c))


def loss_bytes(trace: StepTrace, c: Candidates) -> Array:
    """Bytes at the peak of the loss, in addition to what the blocks keep, by the traced step of the user's own code."""
    return _of_micro_batch(trace.loss, c)


def outside_bytes(shape: ModelShape, c: Candidates) -> Array:
    """Bytes of activations outside the blocks that exist while the blocks run, by the traced step of the user's own
    code. 0 for models of transformers, for which other terms count them."""
    return c.tokens * 0.0 if shape.step_trace is None else _of_micro_batch(shape.step_trace.outside, c)


def tail_bytes(shape: ModelShape, c: Candidates) -> Array:
    """Peak bytes of activations after backward has left the blocks, by the traced step of the user's own code; 0 for
    models of transformers."""
    return c.tokens * 0.0 if shape.step_trace is None else _of_micro_batch(shape.step_trace.tail, c)


def _of_micro_batch(amount: Scaled, c: Candidates) -> Array:
    return c.tokens * 0.0 + amount.fixed + amount.per_sample * c.micro_batch
