"""PyTorch `fully_shard` (FSDP2), fully sharded, replicated or both (HSDP)."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fully_shard as fully_shard_module
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from shardtune.api_schemas.strategies import Fsdp2Config
from shardtune.workers.blocks.prepare import repeated_blocks
from shardtune.workers.rank.model import weights
from shardtune.workers.rank.place import Place
from shardtune.workers.rank.strategies import base, sharded_checkpoint


class Fsdp2Trainer:
    """Parameters are DTensors sharded on axis 0; each rank initialises only its own rows."""

    def __init__(self, model: nn.Module, setting: base.Setting, config: Fsdp2Config) -> None:
        workload, place = setting.task.workload, setting.place
        mesh = make_mesh(config, place)
        units = _shard(model, mesh, setting, config)
        _materialize(model, setting, config)
        _set_prefetch(units, config)
        self._model = model
        self._root = cast(FSDPModule, model)
        self._shard_group = mesh.get_group("dp_shard")
        self._place = place
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = base.adamw(self._parameters, workload.optimizer)
        self._max_norm = workload.max_grad_norm
        self._loss = setting.loss
        self._accumulation = setting.accumulation
        self._grad_sync = config.grad_sync

    def micro_step(self, batch: Any, last: bool) -> torch.Tensor:
        """See `Trainer`."""
        self._root.set_is_last_backward(last)
        if self._grad_sync == "last":
            self._root.set_requires_gradient_sync(last)
        elif self._grad_sync == "reduce_scatter":
            self._root.set_requires_all_reduce(last)
        loss = self._loss(self._model, batch)
        (loss / self._accumulation).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def optimizer_step(self) -> torch.Tensor:
        """See `Trainer`."""
        norm = base.clip_(self._parameters, self._max_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return norm

    def parameter_checksum(self) -> tuple[float, float]:
        """See `Trainer`; replicate groups hold the same, so one shard group is added up."""
        local = base.checksum_of(cast(DTensor, p).to_local() for p in self._parameters)
        return base.reduce_checksum(local, self._place, self._shard_group)

    def save(self, folder: Path) -> None:
        """See `Trainer`."""
        sharded_checkpoint.save(self._model, self._optimizer, folder)

    def load(self, folder: Path) -> None:
        """See `Trainer`."""
        sharded_checkpoint.load(self._model, self._optimizer, folder)

    def close(self) -> None:
        """See `Trainer`."""


def make_mesh(config: Fsdp2Config, place: Place) -> DeviceMesh:
    """The device mesh; neighbouring ranks shard, so a shard group lies within a host where it fits."""
    if config.dp_replicate == 1:
        # With a second axis of size 1 torch would launch an all-reduce with nobody after every reduce-scatter.
        return init_device_mesh(place.device.type, (config.dp_shard,), mesh_dim_names=("dp_shard",))
    return init_device_mesh(
        place.device.type, (config.dp_replicate, config.dp_shard), mesh_dim_names=("dp_replicate", "dp_shard")
    )


def _shard(model: nn.Module, mesh: DeviceMesh, setting: base.Setting, config: Fsdp2Config) -> list[FSDPModule]:
    """Apply `fully_shard` to each unit of blocks and to the root; returns the first block of each unit, in order."""
    mixed = setting.compute_dtype != setting.master_dtype
    policy = MixedPrecisionPolicy(
        param_dtype=setting.compute_dtype if mixed else None, reduce_dtype=setting.reduce_dtype if mixed else None
    )
    offload = (
        CPUOffloadPolicy(pin_memory=config.pin_memory and setting.place.is_cuda)
        if config.cpu_offload
        else OffloadPolicy()
    )
    options = {"mesh": mesh, "mp_policy": policy, "offload_policy": offload, **config.to_fully_shard()}
    blocks = [block for _, block in repeated_blocks(model)]
    units = [blocks[i : i + config.blocks_per_unit] for i in range(0, len(blocks), config.blocks_per_unit)]
    with _one_mesh_after_forward():
        for unit in units:
            fully_shard(unit if len(unit) > 1 else unit[0], **options)
        fully_shard(model, **options)
    return [cast(FSDPModule, unit[0]) for unit in units]


@contextlib.contextmanager
def _one_mesh_after_forward() -> Iterator[None]:
    """Within it, units that reshard to groups of ranks share one mesh of these.

    torch makes a mesh for each unit, with communicators of its own (2.13; pytorch #153302, #187155): a deep model has hundreds,
    and each NCCL communicator takes memory of the device.
    """
    module: Any = fully_shard_module
    make = module._get_post_forward_mesh_info
    made: dict[int, Any] = {}

    def shared(reshard: bool | int, mesh: Any) -> Any:
        if isinstance(reshard, bool):
            return make(reshard, mesh)
        if reshard not in made:
            made[reshard] = make(reshard, mesh)
        return made[reshard]

    module._get_post_forward_mesh_info = shared
    try:
        yield
    finally:
        module._get_post_forward_mesh_info = make


def _materialize(model: nn.Module, setting: base.Setting, config: Fsdp2Config) -> None:
    """Give each rank the values of its own rows; replicate groups get equal ones by construction."""
    place = setting.place
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device=torch.device("cpu") if config.cpu_offload else place.device)
    # `to_empty` has emptied the buffers too.
    for name, buffer in buffers.items():
        owner, _, key = name.rpartition(".")
        model.get_submodule(owner)._buffers[key] = buffer.to(place.device)
    for name, parameter in model.named_parameters():
        shard = cast(DTensor, parameter)
        local = shard.to_local()
        if local.numel() == 0:
            continue
        _, offset = compute_local_shape_and_global_offset(shard.shape, shard.device_mesh, shard.placements)
        start = offset[0] * (shard.numel() // shard.shape[0])
        weights.fill_(
            local.detach().view(-1), name, shard.shape, start, setting.task.workload.seed, setting.compute_dtype
        )


def _set_prefetch(units: list[FSDPModule], config: Fsdp2Config) -> None:
    """Gather further units ahead than FSDP2 does by itself (none explicitly in forward, one in backward)."""
    for i, unit in enumerate(units):
        if config.forward_prefetch:
            unit.set_modules_to_forward_prefetch(units[i + 1 : i + 1 + config.forward_prefetch])
        if config.backward_prefetch != 1:
            ahead = units[max(0, i - config.backward_prefetch) : i][::-1]
            # An empty list means FSDP2's default; the unit itself, already gathered, means none.
            unit.set_modules_to_backward_prefetch(ahead or [unit])
