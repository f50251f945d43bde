"""Styles for torch's `parallelize_module` that torch lacks: split the sequence, gather it, or leave a module whole."""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel.style import ParallelStyle


class SplitAtInput(ParallelStyle):
    """Parallel style that splits a module's input, hidden states [samples, positions, width], into parts of the
    sequence, one for each rank."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.register_forward_pre_hook(partial(_change_hidden, device_mesh, _split), with_kwargs=True)
        return module


class GatherAtInput(ParallelStyle):
    """Parallel style that gathers the parts of the sequence from all ranks at a module's input."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.register_forward_pre_hook(partial(_change_hidden, device_mesh, _gather), with_kwargs=True)
        return module


class Replicated(ParallelStyle):
    """Parallel style of a module that every rank computes whole on equal input, so that the gradients of its parameters
    are equal on all ranks."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in module.named_parameters(recurse=False):
            replicated = distribute_tensor(parameter, device_mesh, [Replicate()], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(replicated, requires_grad=parameter.requires_grad))
        module.register_forward_pre_hook(
            lambda _module, inputs: tuple(_as_whole(value, device_mesh) for value in inputs)
        )
        module.register_forward_hook(lambda _module, _inputs, output: output.to_local())
        return module


def _as_whole(value: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    return value if isinstance(value, DTensor) else DTensor.from_local(value, mesh, [Replicate()], run_check=False)


def _change_hidden(
    mesh: DeviceMesh, change: Any, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replace the hidden states among a module's arguments. They are the first argument, or the one named
    `hidden_states`."""
    if args:
        return (change(args[0], mesh), *args[1:]), kwargs
    return args, kwargs | {"hidden_states": change(kwargs["hidden_states"], mesh)}


def _split(hidden: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    replicated = DTensor.from_local(hidden, mesh, [Replicate()], run_check=False)
    return replicated.redistribute(placements=[Shard(1)]).to_local()


def _gather(hidden: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    # A DTensor, not its local part: the gradients that a child's matrices send back are summed once for all of them.
    return DTensor.from_local(hidden, mesh, [Shard(1)], run_check=False).redistribute(placements=[Replicate()])
