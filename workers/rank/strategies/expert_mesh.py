"""Expert parallelism under FSDP2: experts divided over neighbouring ranks, then sharded and replicated over the other
ranks."""

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
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.strategies.base import TrainingSetup

_EXPERT, _SHARD = "ep", "expert_shard"


class DividedExperts:
    """Expert layers in one rank's part of the model, whose experts are divided among ranks. Without expert parallelism
    there are none."""

    def __init__(self, model: nn.Module, ranks: int, config: Fsdp2Config, setting: TrainingSetup) -> None:
        """Divide the model's experts over `ranks` ranks, in place.

        Raises:
            ValueError: the model's experts cannot be divided over that many ranks.
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
        self._mesh = _make_mesh(config, setting.context)
        self._layers = experts.divide(model, self._mesh[_EXPERT])

    def of(self, modules: Sequence[nn.Module]) -> list[nn.Module]:
        """Expert layers that lie within the given modules."""
        inside = {id(part) for module in modules for part in module.modules()}
        return [layer for layer in self._layers if id(layer) in inside]

    def shard(self, modules: Sequence[nn.Module], options: dict[str, Any]) -> list[nn.Module]:
        """Apply `fully_shard` to the expert layers within the given modules, with the same options as for the FSDP2
        unit around them; returns the sharded layers."""
        layers = self.of(modules)
        if not layers:
            return []
        names = tuple(name for name in ("dp_replicate", _SHARD) if name in (self._mesh.mesh_dim_names or ()))
        around: MixedPrecisionPolicy = options["mp_policy"]
        # Inputs are not cast: routing weights keep the precision in which the router computed them.
        policy = MixedPrecisionPolicy(around.param_dtype, around.reduce_dtype, cast_forward_inputs=False)
        expert_options = {
            "mesh": self._mesh[names],
            "mp_policy": policy,
            "shard_placement_fn": lambda _: Shard(self._axis),
        }
        # A number would name a group of ranks of the surrounding mesh, which the experts' mesh does not have.
        expert_options["reshard_after_forward"] = bool(options["reshard_after_forward"])
        for layer in layers:
            fully_shard(layer, **options | expert_options)
            _detach_hooks_from_modes(layer)
        return layers

    def average(self) -> None:
        """Divide expert gradients by the number of ranks among which experts are divided.

        Such a gradient is a sum over these ranks, whose tokens the expert processed, and already a mean over the other
        ranks.
        """
        gradients = [
            parameter.grad for layer in self._layers for parameter in layer.parameters() if parameter.grad is not None
        ]
        if gradients:
            torch._foreach_div_(
                [gradient.to_local() for gradient in gradients if isinstance(gradient, DTensor)], self._ranks
            )


def _detach_hooks_from_modes(layer: nn.Module) -> None:
    """Run the FSDP2 hooks of a sharded layer outside of torch's dispatch modes.

    The hooks gather parameters in forward, but often need not gather them again when the surrounding block is
    recomputed. Selective checkpointing, which counts operators, would then find fewer of them than expected (torch
    2.13).
    """
    hooks: Any
    for hooks in (layer._forward_pre_hooks, layer._forward_hooks):
        for key, hook in hooks.items():
            hooks[key] = functools.partial(_without_modes, hook)


def _without_modes(hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _disable_current_modes():
        return hook(*args, **kwargs)


def _make_mesh(config: Fsdp2Config, place: RankContext) -> DeviceMesh:
    """Device mesh for experts, over the ranks of the main mesh in the same order. Ranks with neighbouring numbers
    divide experts and exchange tokens."""
    axes = {"pp": config.pipeline_parallel, "dp_replicate": config.dp_replicate}
    axes |= {_SHARD: config.dp_shard // config.expert_parallel, _EXPERT: config.expert_parallel}
    sizes = {name: size for name, size in axes.items() if size > 1 or name in (_SHARD, _EXPERT)}
    return init_device_mesh(place.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
