"""Traced attention of own code counts as GPUs compute it: fused where the CPU has no fused kernel."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.own_code.scripts import SCRIPTS
from shardtune.api_schemas.training.step_trace import StepTrace
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.workers.rank.own_code import trace_step

LENGTH, WIDTH, HEADS = 256, 64, 4
Attend = Callable[["Attention", Tensor, Tensor, Tensor], Tensor]


class Attention(nn.Module):
    """Block of attention alone."""

    def __init__(self, attend: Attend, value_width: int) -> None:
        super().__init__()
        self.attend, self.value_width = attend, value_width
        self.inputs = nn.Linear(WIDTH, HEADS * (16 + 16 + value_width))
        self.output = nn.Linear(HEADS * value_width, WIDTH)
        self.bias = nn.Parameter(torch.zeros(1, HEADS, LENGTH, LENGTH))

    def forward(self, hidden: Tensor) -> Tensor:
        parts = self.inputs(hidden).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        mixed = self.attend(self, *parts.split([16, 16, self.value_width], -1))
        return hidden + self.output(mixed.transpose(1, 2).flatten(2))


class Stack(nn.Module):
    """Model of two such blocks."""

    def __init__(self, attend: Attend, value_width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention(attend, value_width) for _ in range(2))

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


class Script:
    """Own code of such a stack."""

    def __init__(self, attend: Attend, value_width: int = 16) -> None:
        self.build_model = lambda: Stack(attend, value_width)

    def make_batch(self, _step: int, samples: range, _device: Any) -> Tensor:
        return torch.zeros(len(samples), LENGTH, WIDTH)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()


def traced(script: Any) -> StepTrace:
    workload = Workload(sequence_length=LENGTH, global_batch=8, precision=PRECISIONS["bf16-autocast"])
    return trace_step.trace(script, workload)


def plain(_block: Attention, *operands: Tensor) -> Tensor:
    return scaled_dot_product_attention(*operands)


SCORES = HEADS * LENGTH * LENGTH * 2
"""Bytes of one sample's scores in bfloat16, which fused attention never keeps."""


@pytest.mark.parametrize(
    ("attend", "value_width"),
    [
        (plain, 32),
        (lambda block, *operands: scaled_dot_product_attention(*operands, attn_mask=block.bias), 16),
        (lambda _, *operands: scaled_dot_product_attention(*operands, dropout_p=0.1, is_causal=True), 16),
    ],
    ids=["value-of-another-width", "trained-mask", "dropout"],
)
def test_attention_that_gpus_fuse_is_traced_as_fused(attend: Attend, value_width: int) -> None:
    reference, trace = traced(Script(plain)), traced(Script(attend, value_width))
    assert trace.blocks_forward.attention_flops >= reference.blocks_forward.attention_flops > 0
    assert trace.backward.attention_flops >= reference.backward.attention_flops
    assert trace.block.per_sample < reference.block.per_sample + 0.25 * SCORES
    assert trace.selective.per_sample >= reference.selective.per_sample > 0


def test_attention_that_no_gpu_fuses_keeps_its_scores() -> None:
    def three_dimensions(_block: Attention, *operands: Tensor) -> Tensor:
        flat = (operand.flatten(0, 1) for operand in operands)
        return scaled_dot_product_attention(*flat).unflatten(0, (-1, HEADS))

    assert traced(Script(three_dimensions)).block.per_sample > traced(Script(plain)).block.per_sample + SCORES


def test_a_trace_leaves_torch_as_it_was() -> None:
    operands = [torch.rand(1, 2, 8, 4) for _ in range(3)]
    before = scaled_dot_product_attention(*operands)
    trace_step.trace(SCRIPTS[0], Workload(sequence_length=SCRIPTS[0].length, global_batch=2))
    assert torch.equal(scaled_dot_product_attention(*operands), before)
