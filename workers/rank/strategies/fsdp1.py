"""Backend for PyTorch FullyShardedDataParallel (FSDP1): one flat parameter per block, and one for the parameters
outside blocks."""

import math
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)

from shardtune.api_schemas.strategies import Fsdp1Config
from shardtune.api_schemas.strategies.fsdp1 import HYBRID
from shardtune.api_schemas.training.adapters import Lora
from shardtune.workers.blocks.prepare import repeated_blocks
from shardtune.workers.rank.model import adapters, weights
from shardtune.workers.rank.model import build as models
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.strategies import base, optimizers
from shardtune.workers.rank.strategies.loss_scale import LossScale
from shardtune.workers.rank.strategies.wrapped_model import WrappedModel


class Fsdp1Trainer(WrappedModel):
    """Trainer for FSDP1 that gives values to the model and shards it block by block, so that besides the shards at most
    one whole block is in memory."""

    def __init__(self, model: nn.Module, setting: base.TrainingSetup, config: Fsdp1Config) -> None:
        workload, place = setting.task.workload, setting.context
        self._fsdp = _shard(model, setting, config)
        self._place = place
        self._sharded = config.dp_shard > 1
        self._parameters = [p for p in self._fsdp.parameters() if p.requires_grad]
        # Replicate groups hold equal shards.
        shard = dist.get_rank(self._fsdp.process_group) if self._sharded else 0
        optimizer = optimizers.make(workload.optimizer, self._parameters, shard=shard)
        loss_scale = LossScale(setting, has_flat_shards=True)
        super().__init__(self._fsdp, optimizer, setting, loss_scale, sync_every=config.grad_sync == "every")

    def optimizer_step(self) -> torch.Tensor:
        """Clip and update at the end of a step, as `Trainer.optimizer_step` describes; returns the gradient norm."""
        self._loss_scale.unscale(self._optimizer)
        # FSDP1's own clipping reduces the norm over shards; an infinite limit measures the norm and scales nothing.
        norm: torch.Tensor = self._fsdp.clip_grad_norm_(math.inf if self._max_norm is None else self._max_norm)
        self._loss_scale.step(self._optimizer)
        self._state_check.after_step(self._optimizer.members)
        self._optimizer.zero_grad()
        return norm

    def parameter_checksum(self) -> tuple[float, float]:
        """Sum and sum of squares of all master weights of the model (see `Trainer.parameter_checksum`). Only the ranks
        of one shard group are added up, since its replicas are equal; the padding at the end of a flat parameter is
        zero."""
        # Replicate groups hold equal shards: a sum over all ranks would count each element once per replica.
        total = base.checksum_of(self._parameters)
        if self._sharded:
            return base.reduce_checksum(total, self._place, self._fsdp.process_group)
        return float(total[0]), float(total[1])


def _shard(model: nn.Module, setting: base.TrainingSetup, config: Fsdp1Config) -> FullyShardedDataParallel:
    place = setting.context
    mixed = setting.weights_dtype != setting.master_dtype
    prefetch = config.backward_prefetch
    precision = MixedPrecision(
        param_dtype=setting.weights_dtype if mixed else None, reduce_dtype=setting.reduce_dtype if mixed else None
    )
    options = {
        **_mesh_option(config, place),
        "sharding_strategy": ShardingStrategy[config.sharding_strategy],
        "cpu_offload": CPUOffload(config.cpu_offload),
        "mixed_precision": precision,
        "backward_prefetch": BackwardPrefetch[prefetch] if prefetch is not None else None,
        "device_id": place.device,
        **config.to_fsdp1(),
    }
    models.move_buffers(model, place.device)
    has_lora = isinstance(setting.task.workload.adapter, Lora)
    # PEFT casts a matrix's input to the dtype of the shard, which is that of the masters.
    matrix_options = options | {"mixed_precision": replace(precision, cast_forward_inputs=mixed)}
    for name, block in repeated_blocks(model):
        _materialize(block, name + ".", setting)
        if has_lora:
            # A flat parameter has one dtype and one `requires_grad`, so that each matrix of an adapter is a unit.
            for path, leaf in adapters.trained_leaves(block):
                owner, _, key = path.rpartition(".")
                setattr(block.get_submodule(owner), key, FullyShardedDataParallel(leaf, **matrix_options))
        owner, _, key = name.rpartition(".")
        setattr(model.get_submodule(owner), key, FullyShardedDataParallel(block, **options))
    _materialize(model, "", setting)
    return FullyShardedDataParallel(model, **options)


def _mesh_option(config: Fsdp1Config, place: RankContext) -> dict[str, object]:
    """Keyword argument `device_mesh` for a hybrid sharding strategy; an empty dictionary for other strategies.

    Ranks with neighbouring numbers shard together, so that a shard group lies within one host if it fits.
    """
    if config.sharding_strategy not in HYBRID:
        return {}
    axes = (config.dp_replicate, config.dp_shard)
    mesh = init_device_mesh(place.device.type, axes, mesh_dim_names=("dp_replicate", "dp_shard"))
    return {"device_mesh": mesh}


def _materialize(module: nn.Module, prefix: str, setting: base.TrainingSetup) -> None:
    """Give parameters that are still on the meta device their initial values, unsharded."""
    seed = setting.task.workload.seed

    def make(name: str, old: nn.Parameter) -> nn.Parameter:
        if not old.is_meta:
            return old
        with setting.context.accelerator.materializing():
            value = torch.empty(old.shape, dtype=setting.dtype_of(old), device=setting.context.device)
        weights.fill_(value.view(-1), prefix + name, old.shape, 0, seed, setting.weights_dtype)
        return nn.Parameter(value, requires_grad=old.requires_grad)

    models.replace_parameters(module, make)
