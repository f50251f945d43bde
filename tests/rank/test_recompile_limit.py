"""Blocks that Dynamo would run uncompiled, beyond its limit of recompilations, and the count of these."""

import types
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._dynamo.exc import FailOnRecompileLimitHit

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.workers.blocks.prepare import prepare_blocks
from shardtune.workers.rank.measure import compilations
from shardtune.workers.rank.model import cast

BLOCKS = 12
COMPILED = TrialConfig(strategy=DdpConfig(), compile=True)


class Block(nn.Module):
    """Linear layer that is applied a number of times; Dynamo compiles it anew for each number."""

    def __init__(self, repetitions: int) -> None:
        super().__init__()
        self.linear, self.repetitions = nn.Linear(4, 4), repetitions

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for _ in range(self.repetitions):
            hidden = self.linear(hidden)
        return hidden


class Stack(nn.Module):
    """Model of repeated blocks."""

    def __init__(self, *blocks: Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=False):
        yield
    torch._dynamo.reset()


def test_a_block_beyond_the_limit_fails_instead_of_running_uncompiled() -> None:
    model = Stack(*(Block(number) for number in range(1, BLOCKS + 1)))
    prepare_blocks(model, COMPILED, backend="eager")
    with pytest.raises(FailOnRecompileLimitHit):
        model(torch.ones(1, 4))


def test_equal_blocks_share_one_compilation() -> None:
    model = Stack(*(Block(2) for _ in range(BLOCKS)))
    prepare_blocks(model, COMPILED, backend="eager")
    torch._dynamo.utils.counters.clear()
    model(torch.ones(1, 4)).sum().backward()
    assert torch._dynamo.utils.counters["frames"]["ok"] <= 2


@pytest.mark.parametrize("is_fullgraph", [False, True])
def test_functions_that_may_not_break_their_graph_are_counted_too(is_fullgraph: bool) -> None:
    compilations.keep_records()
    before = compilations.count()
    # Code of its own: Dynamo keeps what it compiled of a function.
    function = types.FunctionType(_double.__code__.replace(co_name=f"own_{is_fullgraph}"), globals())
    compiled = torch.compile(function, backend="eager", dynamic=False, fullgraph=is_fullgraph)
    for size in (2, 3):
        compiled(torch.ones(size))
    after = compilations.count()
    assert (after.frames - before.frames, after.recompilations - before.recompilations) == (2, 1)


def test_blocks_whose_weights_are_cast_share_one_compilation() -> None:
    """bf16-mixed under DDP: on an H200 every compiled trial of 16 blocks reached the limit."""
    model = Stack(*(Block(2) for _ in range(BLOCKS)))
    cast.compute_in(model, torch.bfloat16)
    prepare_blocks(model, COMPILED, backend="eager")
    torch._dynamo.utils.counters.clear()
    model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
    assert torch._dynamo.utils.counters["frames"]["ok"] <= 2
    assert model.blocks[0].linear.weight.dtype is torch.bfloat16
    assert next(model.parameters()).dtype is torch.float32 and next(model.parameters()).grad is not None


def test_modules_of_other_parameters_keep_classes_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 4), nn.LayerNorm(4))
    cast.compute_in(model, torch.bfloat16)
    assert type(model[0]) is type(model[2])
    assert len({type(module) for module in model}) == 3
    assert model(torch.ones(1, 4, dtype=torch.bfloat16)).dtype is torch.bfloat16


def test_a_recompilation_counts_however_much_is_compiled_after_it() -> None:
    compilations.keep_records()
    before = compilations.count()
    for size in (2, 3):
        torch.compile(_double, backend="eager", dynamic=False)(torch.ones(size))
    for number in range(70):
        code = _double.__code__.replace(co_name=f"double_{number}")
        torch.compile(types.FunctionType(code, globals()), backend="eager")(torch.ones(2))
    after = compilations.count()
    assert (after.frames - before.frames, after.recompilations - before.recompilations) == (72, 1)


def _double(values: torch.Tensor) -> torch.Tensor:
    return values + values
