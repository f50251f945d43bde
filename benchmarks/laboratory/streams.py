"""FSDP2's streams on CPU ranks, so that reductions and gathers overlap as on a GPU.

`torch.cpu.Stream` and its events do nothing (torch 2.13), so `foreach_reduce` would block autograd's thread. Here it runs in
one worker thread, in the order of its calls, as in a stream. Only the laboratory does this: the product's CPU ranks train
as torch trains.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp._fully_shard._fsdp_param_group as param_group
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

_worker = ThreadPoolExecutor(1)
_torch_reduce = param_group.foreach_reduce  # type: ignore[attr-defined]
_twins: dict[dist.ProcessGroup, dist.ProcessGroup] = {}


class _ReductionEvent:
    """Event of a stream that ends with a reduction."""

    def __init__(self, reduction: "Future[Any]") -> None:
        self.reduction = reduction


def _reduce(parameters: Any, gradients: list[Any], group: Any, stream: Any, *rest: Any) -> tuple[Any, ...]:
    reduction = _worker.submit(_torch_reduce, parameters, list(gradients), _twins.get(group, group), stream, *rest)
    event = _ReductionEvent(reduction)
    return None, event, stream, event, None, None, None


def _wait_event(_stream: torch.cpu.Stream, event: Any) -> None:
    if isinstance(event, _ReductionEvent):
        event.reduction.result()


def shard(model: nn.Sequential, mesh: DeviceMesh, reshard: bool = True) -> nn.Sequential:
    """Shard each block of a model by FSDP2 over the mesh's last dimension, with working streams."""
    _install(mesh)
    for block in model:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh)
    model._set_unshard_async_op(True)  # type: ignore[operator]
    blocks = list(model)
    for block, following in pairwise(blocks):
        block.set_modules_to_forward_prefetch([following])  # type: ignore[operator]
    return model


def _install(mesh: DeviceMesh) -> None:
    param_group.foreach_reduce = _reduce  # type: ignore[attr-defined,assignment]
    torch.cpu.Stream.wait_event = _wait_event  # type: ignore[method-assign,assignment]
    sharding = mesh.get_group(mesh.ndim - 1)
    # Two threads of one rank would take the tags of one gloo group in another order than on other ranks.
    lists: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(lists, dist.get_process_group_ranks(sharding))
    for ranks in sorted({tuple(item) for item in lists}):
        twin = dist.new_group(list(ranks))
        if dist.get_rank() in ranks:
            _twins[sharding] = twin
