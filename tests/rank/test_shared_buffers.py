"""Buffers that several modules share, as in a user's own model, keep their values under every name, and where parameters
have none."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from shardtune.api_schemas.strategies import Fsdp2Config
from shardtune.workers.rank.model import build
from shardtune.workers.rank.rehearsal.device import RehearsedDevice
from shardtune.workers.rank.strategies import fsdp2, zero


class Block(nn.Module):
    """Block with a buffer of its own name."""

    mask: torch.Tensor

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2, device="meta")
        self.register_buffer("mask", mask, persistent=False)


def _model() -> nn.Sequential:
    mask = torch.arange(4.0)
    return nn.Sequential(Block(mask), Block(mask))


def test_memory_for_parameters_leaves_shared_buffers_as_they_were() -> None:
    model, cpu = _model(), torch.device("cpu")
    build.empty_parameters(model, cpu, build.buffers_of(model), cpu)
    assert all(parameter.device == cpu for parameter in model.parameters())
    buffers = dict(model.named_buffers(remove_duplicate=False))
    assert all(torch.equal(buffer, torch.arange(4.0)) for buffer in buffers.values()), buffers
    assert buffers["0.mask"] is buffers["1.mask"]


def test_shared_buffers_that_a_library_cast_get_their_dtype_back() -> None:
    model = _model()
    buffers = build.buffers_of(model)
    model.bfloat16()
    zero._restore_buffers(model, buffers)
    assert {buffer.dtype for buffer in model.buffers()} == {torch.float32}


def test_a_rehearsed_model_can_read_its_buffers() -> None:
    model: Any = nn.Module()
    model.register_buffer("mask", torch.arange(4.0))
    device = RehearsedDevice()
    setting: Any = SimpleNamespace(context=SimpleNamespace(accelerator=device, device=device.tensors))
    part: Any = SimpleNamespace(module=model, names={})
    fsdp2._materialize(part, setting, Fsdp2Config(dp_shard=1), {})
    assert model.mask.tolist() == [0.0, 1.0, 2.0, 3.0]
