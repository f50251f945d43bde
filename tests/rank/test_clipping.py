"""Gradient clipping of DTensors: as many operators as for plain tensors, and the same norm.

torch.distributed.tensor adds DTensor to the types that foreach operators take (2.13, `_foreach_supported_types`).
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.overrides import TorchFunctionMode

from shardtune.workers.rank.strategies.base import clip_gradients_

_PARAMETERS = 12


class FunctionCounter(TorchFunctionMode):
    """Counts the functions of torch that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[str]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[function.__name__] += 1
        return function(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def plain_parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    parameters = []
    for _ in range(_PARAMETERS):
        parameter = nn.Parameter(torch.zeros(8, 16))
        parameter.grad = torch.randn(8, 16, generator=generator)
        parameters.append(parameter)
    return parameters


def sharded_parameters(mesh: DeviceMesh) -> list[nn.Parameter]:
    parameters = []
    for plain in plain_parameters():
        assert plain.grad is not None
        parameter = nn.Parameter(distribute_tensor(plain.detach(), mesh, [Shard(0)]))
        parameter.grad = distribute_tensor(plain.grad, mesh, [Shard(0)])
        parameters.append(parameter)
    return parameters


def test_dtensors_are_clipped_by_one_call_for_all_not_one_for_each(mesh: DeviceMesh) -> None:
    with FunctionCounter() as counter:
        clip_gradients_(sharded_parameters(mesh), 1.0)
    assert (counter.calls["_foreach_norm"], counter.calls["_foreach_mul_"]) == (1, 1)
    assert counter.calls["mul_"] == 0


def test_the_norm_and_clipped_gradients_of_dtensors_are_those_of_plain_tensors(mesh: DeviceMesh) -> None:
    plain, sharded = plain_parameters(), sharded_parameters(mesh)
    expected = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in plain if p.grad is not None]))
    norms = [clip_gradients_(parameters, 1.0) for parameters in (plain, sharded)]
    assert [float(norm) for norm in norms] == pytest.approx([float(expected)] * 2, rel=1e-6)
    for plain_parameter, sharded_parameter in zip(plain, sharded, strict=True):
        assert sharded_parameter.grad is not None
        assert torch.equal(plain_parameter.grad, sharded_parameter.grad.full_tensor())
