"""Experts under FSDP2: divided over neighbouring ranks, and what one of these has sharded and replicated over the others."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.utils._python_dispatch import _disable_current_modes

from shardtune.api_schemas.strategies import Fsdp2Config, expert_parallel
from shardtune.workers.rank.model import experts
from shardtune.workers.rank.rank_context import Place
from shardtune.workers.rank.strategies.base import Setting

_EXPERT, _SHARD = "ep", "expert_shard"


class DividedExperts:
    """Those of one rank's part of the model; none where they are not divided."""

    def __init__(self, model: nn.Module, ranks: int, config: Fsdp2Config, setting: Setting) -> None:
        """Divides them over so many ranks, in place.

        Raises:
            ValueError: the model's experts cannot be.
        """
        self._ranks, self._shard = ranks, config.dp_shard
        self._layers: list[nn.Module] = []
        if self._ranks == 1:
            return
        expert_parallel.check(self._ranks, self._shard, config.tensor_parallel)
        expert_parallel.check_model(self._ranks, setting.task.model)
        sizes = experts.sizes_of(model)
        expert_parallel.check_experts(self._ranks, self._shard, *sizes)
        axis = expert_parallel.sharded_axis(self._ranks, self._shard, sizes.experts, sizes.expert_width)
        assert axis is not None
        self._axis = axis
        self._mesh = _make_mesh(config, setting.place)
        self._layers = experts.divide(model, self._mesh[_EXPERT])

    def of(self, modules: Sequence[nn.Module]) -> list[nn.Module]:
        """The layers of experts within them."""
        inside = {id(part) for module in modules for part in module.modules()}
        return [layer for layer in self._layers if id(layer) in inside]

    def shard(self, modules: Sequence[nn.Module], options: dict[str, Any]) -> list[nn.Module]:
        """Apply `fully_shard`, with the options of what is around them, to the layers within the modules; returns these."""
        found = self.of(modules)
        if not found:
            return []
        names = tuple(name for name in ("dp_replicate", _SHARD) if name in (self._mesh.mesh_dim_names or ()))
        around: MixedPrecisionPolicy = options["mp_policy"]
        # The router's weights stay as precise as it makes them.
        policy = MixedPrecisionPolicy(around.param_dtype, around.reduce_dtype, cast_forward_inputs=False)
        own = {"mesh": self._mesh[names], "mp_policy": policy, "shard_placement_fn": lambda _: Shard(self._axis)}
        # A group to reshard to is one of ranks around them.
        own["reshard_after_forward"] = bool(options["reshard_after_forward"])
        for layer in found:
            fully_shard(layer, **options | own)
            _step_outside(layer)
        return found

    def average(self) -> None:
        """An expert's gradient is the sum over the ranks that divide experts, whose tokens it saw, and the mean over the others."""
        gradients = [one.grad for layer in self._layers for one in layer.parameters() if one.grad is not None]
        if gradients:
            torch._foreach_div_([one.to_local() for one in gradients if isinstance(one, DTensor)], self._ranks)


def _step_outside(layer: nn.Module) -> None:
    """Have the hooks of a sharded layer run outside of what records operators.

    They gather in forward and may not have to again when the block around them is recomputed: selective checkpointing would miss
    operators that it has counted (torch 2.13).
    """
    hooks: Any
    for hooks in (layer._forward_pre_hooks, layer._forward_hooks):
        for key, hook in hooks.items():
            hooks[key] = functools.partial(_without_modes, hook)


def _without_modes(hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _disable_current_modes():
        return hook(*args, **kwargs)


def _make_mesh(config: Fsdp2Config, place: Place) -> DeviceMesh:
    """Over the same ranks in the same order as the mesh of the rest: neighbours divide experts, and exchange tokens."""
    axes = {"pp": config.pipeline_parallel, "dp_replicate": config.dp_replicate}
    axes |= {_SHARD: config.dp_shard // config.expert_parallel, _EXPERT: config.expert_parallel}
    held = {name: size for name, size in axes.items() if size > 1 or name in (_SHARD, _EXPERT)}
    return init_device_mesh(place.device.type, tuple(held.values()), mesh_dim_names=tuple(held))
