"""Offloaded states in one rank's host memory, page-locked parts as torch allocates them.

Sources: torch 2.13 (`fsdp/_fully_shard`, `fsdp/_flat_param.py`), DeepSpeed 0.19.8 (`zero/stage_1_and_2.py`,
`zero/stage3.py`).
"""

from collections.abc import Callable

import numpy as np

from shardtune.tuner.prediction.backends import trained_fractions as trained_part
from shardtune.tuner.prediction.backends.host_allocator import allocated, growth_per_parameter, growth_per_unit
from shardtune.tuner.prediction.candidates import FSDP1, Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.model_shape import ModelShape


def fully_sharded(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, gloo: bool) -> Array:
    """Bytes of master weights, moments and gradients that FSDP offloads to one rank's host memory. FSDP's fp32 shards
    are its master weights."""
    if not np.any(c.offload_optimizer):
        return c.tokens * 0.0
    # torch pins weights and gradients (on CPU ranks neither); AdamW's moments are pageable.
    trained, master = trained_part.fraction(shape, impl), trained_part.master_bytes(shape, d, impl)
    weights = master if gloo else master * _growth(shape, c, d.master)
    gradients = 0.0 if gloo else d.reduce * _growth(shape, c, d.reduce)
    # Published runs of LoRA count the masters of trained weights alone.
    held = weights if shape.adapter is not None else weights * trained
    per_parameter = (d.moments + gradients) * trained + held
    total: Array = per_parameter * shape.parameters / c.holders * c.offload_optimizer
    return total


def _growth(shape: ModelShape, c: Candidates, bytes_of_element: int) -> Array:
    """Factor by which pinning enlarges FSDP's shards in host memory. FSDP2 pins them one by one, FSDP1 as one flat
    tensor per unit."""
    per_rank = bytes_of_element / c.holders
    by_unit = growth_per_unit(shape, per_rank, c.blocks_per_unit)
    rounded: Array = np.where(c.backend == FSDP1, by_unit, growth_per_parameter(shape, per_rank))
    return np.where(c.pinned_optimizer > 0, rounded, 1.0)


def zero(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, gloo: bool) -> Array:
    """Bytes that ZeRO offloads to one rank's host memory: master weights, moments, gradients, and low-precision
    parameters."""
    if not np.any(c.offload_optimizer) and not np.any(c.offload_parameters):
        return c.tokens * 0.0
    optimizer = np.where(c.stage == 3, _host_3(shape, c, d, impl, gloo), _host_1_2(shape, c, d, impl, gloo))
    lock = _locked(c.pinned_parameters, gloo)
    total: Array = optimizer + lock(d.compute * shape.parameters / c.shard * c.offload_parameters)
    return total


def _locked(is_pinned: Array, gloo: bool) -> Callable[[Array], Array]:
    """Return a function from a tensor's size in bytes to the bytes that it takes in host memory: rounded up where the
    configuration pins the tensor; CPU ranks pin none."""
    return lambda size: size if gloo else np.where(is_pinned > 0, allocated(size), size)


def _host_1_2(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, gloo: bool) -> Array:
    """Bytes in host memory of the optimizer that ZeRO stages 1 and 2 offload. DeepSpeed pins masters, gradients and
    staged weights as one tensor each; it does not pin the moments (`DeepSpeedCPUAdam`)."""
    lock, trained = _locked(c.pinned_optimizer, gloo), shape.parameters * trained_part.fraction(shape, impl) / c.shard
    flat = d.moments * trained + lock(d.master * trained) + lock(d.reduce * trained)
    # A gradient in transit and the updated weights (`param_buffer_of_bit16_for_cpu_offload_groups`). Micro batches are
    # added up there unless that happens in another dtype on the device (`accumulated_grads_in_cpu`).
    adds_up = (c.accumulation > 1) & (d.reduce == d.compute)
    staged = lock(d.compute * float(shape.largest_parameter) + c.tokens * 0.0) + lock(d.compute * trained)
    total: Array = np.where(c.offload_optimizer > 0, flat + staged + d.compute * trained * adds_up, 0.0)
    return total


def _host_3(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, gloo: bool) -> Array:
    """Bytes in host memory of the optimizer that ZeRO stage 3 offloads. DeepSpeed pins the flat buffer of all gradient
    partitions, and the optimizer's gradients as one tensor per sub-group."""
    lock = _locked(c.pinned_optimizer, gloo)
    trained = shape.parameters * trained_part.fraction(shape, impl) / c.shard * c.offload_optimizer
    group = np.minimum(c.sub_group, np.maximum(trained, 1.0))
    full_groups = np.floor(trained / group)
    gradients = full_groups * lock(d.reduce * group) + lock(d.reduce * (trained - full_groups * group))
    total: Array = (d.moments + d.master) * trained + lock(d.reduce * trained) + gradients
    return total
