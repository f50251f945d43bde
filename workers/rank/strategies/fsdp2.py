"""Backend for PyTorch `fully_shard` (FSDP2): sharded, replicated or both (HSDP), with tensor and pipeline parallelism
in each replica."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fully_shard as fully_shard_module
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import loss_parallel

from shardtune.api_schemas.strategies import Fsdp2Config, tensor_parallel
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.workers.blocks import fsdp2_calls
from shardtune.workers.rank.model import adapters, tensor_plan, weights
from shardtune.workers.rank.model import build as models
from shardtune.workers.rank.model.quantization import layers as quantised
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.strategies import base, optimizers, pipeline, sharded_checkpoint
from shardtune.workers.rank.strategies.expert_mesh import DividedExperts
from shardtune.workers.rank.strategies.float8_gather import Float8Gather, master_shard
from shardtune.workers.rank.strategies.loss_scale import LossScale
from shardtune.workers.rank.strategies.state_dtypes import StateCheck

TENSOR = "tp"
"""Name of the mesh axis along which ranks split the model's matrices (tensor parallelism)."""
STAGE = "pp"
"""Name of the mesh axis along which ranks hold the pipeline stages of one replica."""


class Fsdp2Trainer:
    """Trainer for FSDP2. Parameters are DTensors, sharded on axis 0 and by the tensor-parallel plan; each rank
    initialises only its own part."""

    def __init__(self, model: nn.Module, setting: base.TrainingSetup, config: Fsdp2Config) -> None:
        workload, place = setting.task.workload, setting.context
        if workload.adapter is not None:
            adapters.cast_frozen(model, setting.weights_dtype)
        unpacked = quantised.declare_packed(model, setting.weights_dtype)
        if workload.precision.has_low_states:
            # Shards, their gradients and their states have the dtype of the parameters.
            models.cast_trained(model, setting.master_dtype)
        mesh = make_mesh(config, place)
        self._is_split = config.tensor_parallel > 1
        if self._is_split:
            _split(model, mesh[TENSOR], setting.task)
        self._experts = DividedExperts(model, config.expert_parallel, config, setting)
        stages, virtual = mesh[STAGE] if config.pipeline_parallel > 1 else None, config.pipeline_virtual_stages
        parts = pipeline.RankPart.of(model, setting, stages, virtual, config.pipeline_schedule)
        for part in parts:
            units = _shard(part, self._experts, mesh, setting, config)
            _materialize(part, setting, config, unpacked)
            _set_prefetch(units, config)
            fsdp2_calls.apply(part.module, config.calls())
        self._model = parts[0].module if len(parts) == 1 else nn.ModuleList(part.module for part in parts)
        self._float8_gather = Float8Gather(self._model, config.float8_gather)
        self._float8_gather.refresh()
        self._place, self._grad_sync = place, config.grad_sync
        self._loss, self._accumulation = setting.cast_loss, setting.accumulation
        self._pipeline: pipeline.Pipeline | None = None
        if stages is not None:
            self._pipeline = pipeline.Pipeline(parts, setting, stages, config.pipeline_schedule, self._begin_backward)
        named = [
            (part, name, parameter)
            for part in parts
            for name, parameter in part.module.named_parameters()
            if parameter.requires_grad
        ]
        self._parameters = [parameter for _, _, parameter in named]
        self._twins = [parameter for part, name, parameter in named if name in part.twins]
        # A tied parameter is in two stages: only the first stage's copy counts in norm and checksum.
        self._counted = [parameter for part, name, parameter in named if part.index == 0 or name not in part.twins]
        blocks = [block for part in parts for block in part.blocks]
        self._optimizer = optimizers.make(workload.optimizer, self._parameters, blocks)
        self._state_check, self._loss_scale = StateCheck(setting), LossScale(setting)
        self._max_norm = workload.max_grad_norm
        self._checkpoint_parts = sharded_checkpoint.CheckpointParts(
            stages is not None, setting.saves_trained_only, self._loss_scale.scaler
        )

    def begin_step(self, micro_batches: int) -> None:
        """Average gradients over this number of micro batches (see `Trainer.begin_step`)."""
        self._accumulation = micro_batches
        if self._pipeline is not None:
            self._pipeline.begin_step(micro_batches)

    def micro_step(self, batch: Any, last: bool) -> torch.Tensor:
        """Run forward and backward of one micro batch, as `Trainer.micro_step` describes; returns the mean loss. With
        pipeline stages, the call for the last micro batch runs all micro batches of the step."""
        # `loss_parallel` computes the loss of logits that are split by vocabulary on their parts, forward and backward.
        with loss_parallel() if self._is_split else contextlib.nullcontext():
            if self._pipeline is not None:
                return self._pipeline.run_when_complete(batch, last)
            self._begin_backward(self._model, last)
            loss = self._loss(self._model, batch)
            self._loss_scale.backward(loss / self._accumulation)
        mean_loss = loss.detach()
        return mean_loss.full_tensor() if isinstance(mean_loss, DTensor) else mean_loss

    def _begin_backward(self, root: nn.Module, last: bool) -> None:
        """Tell FSDP2 whether this backward pass is the last of the step, and which reductions of gradients over ranks
        follow it."""
        sharded = cast(FSDPModule, root)
        sharded.set_is_last_backward(last)
        if self._grad_sync == "last":
            sharded.set_requires_gradient_sync(last)
        elif self._grad_sync == "reduce_scatter":
            sharded.set_requires_all_reduce(last)

    def optimizer_step(self) -> torch.Tensor:
        """Clip and update at the end of a step, as `Trainer.optimizer_step` describes; returns the gradient norm."""
        if self._pipeline is not None:
            self._pipeline.sum_twins(self._twins)
        self._experts.average()
        stages = self._pipeline.group if self._pipeline is not None else None
        self._loss_scale.unscale(self._optimizer)
        norm = base.clip_gradients_(self._parameters, self._max_norm, self._counted, stages)
        self._loss_scale.step(self._optimizer)
        self._float8_gather.refresh()
        self._state_check.after_step(self._optimizer.members)
        self._optimizer.zero_grad()
        return norm

    def parameter_checksum(self) -> tuple[float, float]:
        """Sum and sum of squares of all master weights of the model (see `Trainer.parameter_checksum`). A shard that
        several ranks hold is counted once."""
        total = torch.zeros(2, dtype=torch.float64)
        for parameter in self._counted:
            shard = cast(DTensor, parameter)
            total += base.checksum_of([master_shard(shard)]) / copies(shard)
        return base.reduce_checksum(total, self._place)

    def save(self, folder: Path) -> None:
        """Write master weights and optimizer state into a folder that all ranks share (see `Trainer.save`)."""
        sharded_checkpoint.save(self._model, self._optimizer.members, folder, self._checkpoint_parts)

    def load(self, folder: Path) -> None:
        """Load the master weights and optimizer state of a checkpoint (see `Trainer.load`)."""
        sharded_checkpoint.load(self._model, self._optimizer.members, folder, self._checkpoint_parts)
        self._float8_gather.refresh()

    def close(self) -> None:
        """Release the trainer's resources at the end of the trial (see `Trainer.close`)."""


def make_mesh(config: Fsdp2Config, place: RankContext) -> DeviceMesh:
    """Device mesh of a configuration, with the axis of pipeline stages outermost.

    Ranks with neighbouring numbers split matrices, and the next wider groups shard, so that such a group lies within a
    host if it fits. Stages send the least data, so they may span hosts.
    """
    axes = {STAGE: config.pipeline_parallel, "dp_replicate": config.dp_replicate, "dp_shard": config.dp_shard}
    axes |= {TENSOR: config.tensor_parallel}
    # With a replicate axis of size 1 torch would launch an all-reduce with nobody after every reduce-scatter.
    sizes = {name: size for name, size in axes.items() if size > 1 or name == "dp_shard"}
    return init_device_mesh(place.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def _data_axes(mesh: DeviceMesh) -> DeviceMesh:
    """Part of the device mesh that FSDP2 gets: the axes over which it shards and replicates."""
    names = tuple(name for name in mesh.mesh_dim_names or () if name not in (TENSOR, STAGE))
    return mesh if names == mesh.mesh_dim_names else mesh[names]


def copies(parameter: DTensor) -> int:
    """Number of ranks that hold the same part of a parameter."""
    sizes = zip(parameter.placements, parameter.device_mesh.shape, strict=True)
    return math.prod(size for placement, size in sizes if placement.is_replicate())


def _split(model: nn.Module, mesh: DeviceMesh, task: TrialTask) -> None:
    """Apply the tensor-parallel plan to the model.

    Raises:
        ValueError: the number of ranks does not divide the sizes of the model or the workload.
    """
    size, context = mesh.size(), task.config.context_parallel
    stages = task.config.strategy.stages
    tensor_parallel.check(size, context, task.cluster, task.workload, task.model, stages=stages)
    tensor_parallel.check_widths(size, context, *tensor_plan.widths_of(model))
    tensor_plan.of(model).apply(model, mesh)


def _shard(
    part: pipeline.RankPart, experts: DividedExperts, mesh: DeviceMesh, setting: base.TrainingSetup, config: Fsdp2Config
) -> list[list[FSDPModule]]:
    """Apply `fully_shard` to each FSDP unit and to the root.

    Returns a list for each unit, in order: the unit's first block, through which FSDP2 addresses the unit, then its
    layers of experts that are split over expert-parallel ranks.
    """
    mixed = setting.weights_dtype != setting.master_dtype
    policy = MixedPrecisionPolicy(
        param_dtype=setting.weights_dtype if mixed else None, reduce_dtype=setting.reduce_dtype if mixed else None
    )
    offload = (
        CPUOffloadPolicy(pin_memory=config.pin_memory and setting.context.is_cuda)
        if config.cpu_offload
        else OffloadPolicy()
    )
    options = {"mesh": _data_axes(mesh), "mp_policy": policy, "offload_policy": offload, **config.to_fully_shard()}
    blocks = part.blocks
    units = [blocks[i : i + config.blocks_per_unit] for i in range(0, len(blocks), config.blocks_per_unit)]
    divided = []
    with _one_mesh_after_forward():
        for unit in units:
            divided.append(experts.shard(unit, options))
            fully_shard(unit if len(unit) > 1 else unit[0], **options)
        fully_shard(part.module, **options)
    return [
        [cast(FSDPModule, module) for module in (unit[0], *layers)] for unit, layers in zip(units, divided, strict=True)
    ]


@contextlib.contextmanager
def _one_mesh_after_forward() -> Iterator[None]:
    """Context in which FSDP units that reshard after forward to groups of the same number of ranks share one device
    mesh."""
    # torch makes a mesh for each unit, with communicators of its own (2.13; pytorch #153302, #187155): a deep model has
    # hundreds of units, and each NCCL communicator takes memory of the device.
    module: Any = fully_shard_module
    original = module._get_post_forward_mesh_info
    mesh_infos: dict[int, Any] = {}

    def make_shared(reshard: bool | int, mesh: Any) -> Any:
        if isinstance(reshard, bool):
            return original(reshard, mesh)
        if reshard not in mesh_infos:
            mesh_infos[reshard] = original(reshard, mesh)
        return mesh_infos[reshard]

    module._get_post_forward_mesh_info = make_shared
    try:
        yield
    finally:
        module._get_post_forward_mesh_info = original


def _materialize(
    part: pipeline.RankPart, setting: base.TrainingSetup, config: Fsdp2Config, unpacked: Mapping[str, Any]
) -> None:
    """Give each rank the initial values of its own rows. Ranks with copies of the same rows get equal values, because
    values depend only on the parameter's name, the position and the seed.

    `unpacked`: weights that must still be packed in 4 bits, by name.
    """
    place, model = setting.context, part.module
    # Before: parameters of a rehearsal get no values there, but the model's code may read those of its buffers.
    buffers = models.buffers_of(model)
    with place.accelerator.materializing():
        device = torch.device("cpu") if config.cpu_offload else place.device
        models.empty_parameters(model, device, buffers, place.device)
    for name, parameter in model.named_parameters():
        shard = cast(DTensor, parameter)
        local = master_shard(shard)
        full_name, seed = part.names.get(name, name), setting.task.workload.seed
        _, offset = compute_local_shape_and_global_offset(shard.shape, shard.device_mesh, shard.placements)
        if name in unpacked:
            # Each rank packs the whole weight and keeps its rows: scales belong to blocks that no row of words divides.
            whole = quantised.packed(
                unpacked[name], weights.filling(full_name, unpacked[name].shape, seed), place.device
            )
            local.copy_(whole[offset[0] : offset[0] + len(local)])
            continue
        if local.numel() == 0:
            continue
        weights.fill_part_(local, full_name, shard.shape, offset, seed, setting.weights_dtype)


def _set_prefetch(units: list[list[FSDPModule]], config: Fsdp2Config) -> None:
    """Configure FSDP2 to gather more units ahead than by default. The default is no unit in forward and one in
    backward."""
    for i, (unit, *_) in enumerate(units):
        if config.forward_prefetch:
            unit.set_modules_to_forward_prefetch([*chain(*units[i + 1 : i + 1 + config.forward_prefetch])])
        # With several micro batches in flight FSDP2 forgets after the first backward in which order units ran (2.13).
        if config.backward_prefetch != 1 or config.pipeline_parallel > 1:
            ahead = [*chain(*units[max(0, i - config.backward_prefetch) : i][::-1])]
            # An empty list means FSDP2's default; the unit itself, already gathered, means none.
            unit.set_modules_to_backward_prefetch(ahead or [unit])
