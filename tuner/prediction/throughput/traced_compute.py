"""Computation time of the user's own code, from the work that a trace of one training step counted."""

import numpy as np

from shardtune.api_schemas.training.step_trace import StepTrace, StepWork
from shardtune.tuner.prediction.backends.registry import accumulation_bytes, micro_batch_launches
from shardtune.tuner.prediction.candidates import SELECTIVE, Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Rates
from shardtune.tuner.prediction.throughput.compute import (
    COMPILED_KERNELS,
    DISPATCH_MODE,
    SAVED_HOOKS,
    ComputeTimes,
    freed_bytes,
    recomputed,
)

_FUSED_TRAFFIC = 0.5
"""Fraction of the memory traffic of elementwise operators that remains when a compiler fuses them."""


def compute_times(
    shape: ModelShape, trace: StepTrace, c: Candidates, dtypes: Dtypes, impl: Implementation, rates: Rates
) -> ComputeTimes:
    """Seconds of computation per micro batch of the user's own code, by its traced step, for every candidate."""
    zero, repeated = c.tokens * 0.0, recomputed(shape, c, impl)
    blocks, outside, backward = trace.blocks_forward, trace.outside_forward, trace.backward
    fused = np.where(c.compiled > 0, _FUSED_TRAFFIC, 1.0)
    forward_flops = blocks.matmul_flops + outside.matmul_flops
    matmul_flops = forward_flops + backward.matmul_flops + repeated.matmul * blocks.matmul_flops
    forward_attention = blocks.attention_flops + outside.attention_flops
    attention_flops = forward_attention + backward.attention_flops + repeated.attention * blocks.attention_flops
    forward_traffic = _traffic(blocks, c) * fused + _traffic(outside, c)
    traffic = forward_traffic + _traffic(backward, c) * fused + repeated.elementwise * _traffic(blocks, c) * fused
    # Autocast's casts of weights and gradients are operators of the traced step: no term of their own.
    traffic = traffic + accumulation_bytes(shape, c, dtypes, impl)
    elementwise = traffic / rates.memory_bytes + freed_bytes(shape, c, dtypes, impl) / rates.fresh_bytes
    matmul = zero + c.micro_batch * matmul_flops / rates.matmul_flops
    attention = zero + c.micro_batch * attention_flops / rates.attention_flops
    forward = (
        c.micro_batch * (forward_flops / rates.matmul_flops + forward_attention / rates.attention_flops)
        + forward_traffic / rates.memory_bytes
    )
    return ComputeTimes(
        matmul=matmul,
        attention=attention,
        elementwise=elementwise,
        loss=zero,
        launches=_kernels(shape, trace, c, impl) * rates.launch_s,
        machinery=micro_batch_launches(shape, c, dtypes, impl) * rates.launch_s,
        exchange=zero,
        exchange_host=zero,
        forward_fraction=np.minimum(forward / np.maximum(matmul + attention + elementwise, 1e-12), 1.0),
        serial=rates.serial,
    )


def _traffic(work: StepWork, c: Candidates) -> Array:
    traffic: Array = c.tokens * 0.0 + work.traffic.fixed + work.traffic.per_sample * c.micro_batch
    return traffic


def _kernels(shape: ModelShape, trace: StepTrace, c: Candidates, impl: Implementation) -> Array:
    """Number of kernels of one micro batch, with the host's work for checkpointed blocks counted in kernels."""
    repeated = recomputed(shape, c, impl)
    python = np.where(c.checkpointing == SELECTIVE, 2.0 * DISPATCH_MODE, 0.0) + SAVED_HOOKS
    checkpointed = python * c.checkpointed(shape.layers) / shape.layers + repeated.elementwise
    blocks = trace.blocks_forward.kernels * (1.0 + checkpointed) + trace.backward.kernels
    kernels: Array = np.where(c.compiled > 0, COMPILED_KERNELS, 1.0) * blocks + trace.outside_forward.kernels
    return kernels
