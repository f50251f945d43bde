"""The exported script's copies of blocks' inputs to host memory and back, run on the CPU in place of a GPU."""

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardtune.tuner.export.templates import fill

INPUT = (3, 8)


class _Stream:
    def wait_stream(self, _stream: object) -> None: ...


class _Device:
    """`torch` with streams that do nothing, and with the CPU as the GPU."""

    cuda = SimpleNamespace(Stream=_Stream, current_stream=_Stream, stream=contextlib.nullcontext)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty_like(self, tensor: torch.Tensor, **_where: object) -> torch.Tensor:
        return torch.empty_like(tensor)


@pytest.fixture
def exported() -> dict[str, Any]:
    names: dict[str, Any] = {"Callable": Callable, "checkpoint": checkpoint, "torch": _Device()}
    names |= {"functools": functools, "itertools": itertools, "weakref": weakref}
    exec(fill("checkpointing_offload"), names)
    return names


def blocks(exported: dict[str, Any], frozen: int = 0) -> tuple[nn.Sequential, Any]:
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
    net[:frozen].requires_grad_(False)
    inputs = exported["HostInputs"]()
    for block in net:
        exported["checkpointed"](block, inputs)
    return net, inputs


def gradients(net: nn.Sequential) -> list[torch.Tensor]:
    net.zero_grad()
    net(torch.randn(INPUT, generator=torch.Generator().manual_seed(1))).square().mean().backward()
    return [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("frozen", [0, 2])
def test_what_went_to_host_memory_is_back_after_backward(exported: dict[str, Any], frozen: int) -> None:
    net, inputs = blocks(exported, frozen)
    offloaded = gradients(net)
    assert not [*inputs.waiting] and not inputs.ahead
    for block in net:
        del block.forward
    assert offloaded and all(map(torch.equal, offloaded, gradients(net)))


def test_a_forward_without_gradients_sends_nothing(exported: dict[str, Any]) -> None:
    net, inputs = blocks(exported)
    with torch.no_grad():
        net(torch.randn(INPUT))
    assert next(inputs.numbers) == 0


def test_a_forward_without_a_backward_keeps_nothing_and_disturbs_no_other(exported: dict[str, Any]) -> None:
    net, inputs = blocks(exported)
    expected = gradients(net)
    dropped = net(torch.randn(INPUT)).sum()
    assert len(inputs.waiting) == 4
    # One of the dropped forward's inputs is fetched ahead, after the last of the other's.
    assert all(map(torch.equal, expected, gradients(net)))
    del dropped
    assert len(inputs.waiting) == 1
    assert all(map(torch.equal, expected, gradients(net))) and len(inputs.waiting) <= 1


def test_a_block_that_changes_its_input_in_place_is_caught(exported: dict[str, Any]) -> None:
    block = nn.ReLU(inplace=True)
    exported["checkpointed"](block, exported["HostInputs"]())
    with pytest.raises(RuntimeError, match="changes its input in place"):
        block(torch.randn(INPUT, requires_grad=True) * 2)
