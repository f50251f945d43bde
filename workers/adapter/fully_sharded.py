"""FSDP2 (`fully_shard`) for a script's own model, with every parameter of its configuration."""

from typing import cast

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from shardtune.api_schemas.strategies import Fsdp2Config
from shardtune.api_schemas.training.search_space import Backend
from shardtune.api_schemas.training.workload import Precision
from shardtune.workers.adapter.trial import ScriptTrial
from shardtune.workers.blocks import fsdp2_calls
from shardtune.workers.blocks.prepare import repeated_blocks

BACKENDS: tuple[Backend, ...] = ("fsdp2",)
"""Backends that a script can apply when it shards its model with this module, for `adapter.configuration(backends=…)`."""


def shard(model: nn.Module, trial: ScriptTrial) -> FSDPModule:
    """Apply FSDP2 to the model's repeated blocks, then to the rest, in place. Call this after `trial.prepare`, before
    the optimizer is made.

    The process group must exist, and the model must be on `trial.device` (with CPU offload: on the CPU).
    """
    config = _config(trial)
    if config.float8_gather:
        trial.reject(
            "float8_gather (true) needs workload.float8, and a script converts its own layers; set it to false"
        )
    # One axis without replication: a replicate axis of size 1 would launch an all-reduce with nobody after every
    # reduce-scatter.
    mesh = (
        init_device_mesh(trial.device.type, (config.dp_shard,), mesh_dim_names=("dp_shard",))
        if config.dp_replicate == 1
        else init_device_mesh(
            trial.device.type, (config.dp_replicate, config.dp_shard), mesh_dim_names=("dp_replicate", "dp_shard")
        )
    )
    options = {
        "mesh": mesh,
        "mp_policy": _mixed_precision(trial.workload.precision),
        "offload_policy": CPUOffloadPolicy(pin_memory=config.pin_memory and trial.device.type == "cuda")
        if config.cpu_offload
        else OffloadPolicy(),
        **config.to_fully_shard(),
    }
    blocks = [block for _, block in repeated_blocks(model)]
    units = [blocks[at : at + config.blocks_per_unit] for at in range(0, len(blocks), config.blocks_per_unit)]
    for unit in units:
        fully_shard(unit if len(unit) > 1 else unit[0], **options)
    fully_shard(model, **options)
    _gather_ahead([cast(FSDPModule, unit[0]) for unit in units], config)
    try:
        fsdp2_calls.apply(model, config.calls())
    except ValueError as error:
        trial.reject(str(error))
    return cast(FSDPModule, model)


def before_backward(model: FSDPModule, trial: ScriptTrial, is_last: bool) -> None:
    """Tell FSDP2 whether the next backward pass reduces gradients over the ranks, as the trial's configuration says. Call this
    before the backward pass of each micro batch.

    `is_last` is true for the last micro batch before the optimizer's step.
    """
    config = _config(trial)
    model.set_is_last_backward(is_last)
    if config.grad_sync == "last":
        model.set_requires_gradient_sync(is_last)
    elif config.grad_sync == "reduce_scatter":
        model.set_requires_all_reduce(is_last)


def _config(trial: ScriptTrial) -> Fsdp2Config:
    strategy = trial.config.strategy
    if not isinstance(strategy, Fsdp2Config):
        trial.reject("the script shards with FSDP2; give adapter.configuration(backends=fully_sharded.BACKENDS)")
    return strategy


def _mixed_precision(precision: Precision) -> MixedPrecisionPolicy:
    if precision.weights_dtype == precision.master_dtype:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=getattr(torch, precision.compute_dtype), reduce_dtype=getattr(torch, precision.reduce_dtype)
    )


def _gather_ahead(units: list[FSDPModule], config: Fsdp2Config) -> None:
    for at, unit in enumerate(units):
        if config.forward_prefetch:
            unit.set_modules_to_forward_prefetch(units[at + 1 : at + 1 + config.forward_prefetch])
        if config.backward_prefetch != 1:
            # An empty list means FSDP2's default; the unit itself, already gathered, means none.
            ahead = units[max(0, at - config.backward_prefetch) : at][::-1]
            unit.set_modules_to_backward_prefetch(ahead or [unit])
