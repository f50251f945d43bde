"""Compiled blocks with a budget of activations train what uncompiled blocks train, and keep less for backward.

Without SHARDTUNE_TEST_LONG=1, blocks are divided by torch's partitioner and run without inductor's kernels.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._functorch import config as functorch_config

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.workers.blocks import memory_budget
from shardtune.workers.blocks.prepare import prepare_blocks
from shardtune.workers.rank.model import build
from tests.rank.helpers.fork_server_process import HostProcess
from tests.rank.helpers.loss_ranks import assert_same, compared
from tests.support.long_run import IS_LONG as LONG
from tests.support.long_run import telling
from tests.support.ranks.tiny_tasks import BACKENDS, GPT2, LLAMA, MIXTRAL, tiny_task

STRATEGIES = {name: strategy for name, strategy in BACKENDS.items() if name != "zero-3"}
STRATEGIES["fsdp1"] = STRATEGIES["fsdp1"] | {"use_orig_params": True}
SHARED: dict[str, Any] = {
    "model": LLAMA | {"num_hidden_layers": 2},
    "compile": True,
    "micro_batch": 2,
    "parity_steps": 3,
    "max_grad_norm": 0.3,
    # With Adam's usual eps, rounding moves a weight whose gradient is about 1e-8 by a hundredth of a step.
    "optimizer": {"lr": 1.25e-3, "eps": 1e-6},
}
BOUND = {"loss": 1e-6, "norm": 1e-5, "weight": 1e-5}
CASES: dict[str, TrialTask] = {
    f"{name}, {budget}": tiny_task(strategy, activation_memory_budget=budget, **SHARED)
    for name, strategy in STRATEGIES.items()
    for budget in (0.75, 0.5, 0.25, 0.05)
}
CASES["ddp, gpt2"] = tiny_task(BACKENDS["ddp"], activation_memory_budget=0.5, **(SHARED | {"model": GPT2}))
OFTEN = (
    *("ddp, 0.5", "ddp, 0.05", "zero-1, 0.25", "zero-2, 0.5", "fsdp1, 0.5", "fsdp2, 0.5", "fsdp2, 0.05"),
    "ddp, gpt2",
)
TOKENS = torch.randint(0, 512, (4, 32), generator=torch.Generator().manual_seed(3))


class Scaled(nn.Module):
    """Block with one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.scale


class TwoLayers(nn.Module):
    """Block with two layers of 1 MiB each, the size of DDP's first bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(512, 512, bias=False) for _ in range(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(inputs))
        return result


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    tasks = {name: (task, None) for name, task in CASES.items() if LONG or name in OFTEN}
    return compared(tasks, tmp_path_factory.mktemp("budgets"))


@pytest.mark.ranks
@pytest.mark.parametrize("name", telling(CASES, OFTEN))
def test_blocks_with_a_budget_train_what_uncompiled_blocks_train(
    differences: dict[str, dict[str, float]], name: str
) -> None:
    assert_same(differences[name], BOUND)


def _kept_bytes(budget: float, **changes: Any) -> int:
    """Bytes that a tiny model keeps for backward beside its parameters."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    task = tiny_task(BACKENDS["ddp"], activation_memory_budget=budget, **(SHARED | changes))
    network = build.build(task.model, task.workload)
    build.materialize(network, torch.device("cpu"), torch.float32, 1, torch.float32)
    prepare_blocks(network, task.config, backend="aot_eager_decomp_partition")
    parameters = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = network(input_ids=TOKENS, labels=TOKENS).loss
    loss.backward()
    return sum(kept.values())


def test_blocks_keep_less_as_the_budget_falls_and_hardly_more_than_it_allows() -> None:
    whole, *kept = (_kept_bytes(budget) for budget in (1.0, 0.75, 0.5, 0.25, 0.05))
    inputs_alone = _kept_bytes(1.0, activation_checkpointing="full")
    assert whole > kept[0] > kept[1] > kept[2] >= kept[3] >= inputs_alone
    for budget, actual in zip((0.75, 0.5, 0.25, 0.05), kept, strict=True):
        # torch's limit also counts inputs that a block does not keep.
        assert actual <= inputs_alone + (budget + 0.05) * (whole - inputs_alone)


def test_the_budget_holds_inside_the_compiler_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it stays in a process that goes on, and none of it reaches other compiled code of the process."""
    budgets: list[float] = []

    def compile_graph(graph: Any, inputs: Any) -> Any:
        budgets.append(functorch_config.activation_memory_budget)
        return graph.forward

    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda _name: compile_graph)
    config = TrialConfig.model_validate({"strategy": BACKENDS["ddp"], "compile": True, "activation_memory_budget": 0.5})
    blocks = nn.ModuleList(Scaled() for _ in range(2))
    prepare_blocks(nn.Sequential(blocks), config, backend="named")
    other = Scaled()
    other.compile(backend=compile_graph)
    for module in (blocks[0], other, blocks[1]):
        module(torch.ones(1, 2)).sum().backward()
    assert sorted({*budgets}) == [0.5, 1.0] and budgets[0] == 0.5 and functorch_config.activation_memory_budget == 1.0


@pytest.mark.parametrize(("budget", "parts"), [(0.5, 1), (1.0, 2)])
def test_ddp_does_not_divide_a_block_with_a_budget(monkeypatch: pytest.MonkeyPatch, budget: float, parts: int) -> None:
    """By default Dynamo divides a block's graph by DDP's buckets, and each part would keep inputs of its own."""
    graphs: list[Any] = []

    def compile_graph(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda _name: compile_graph)
    wrapper = SimpleNamespace(bucket_bytes_cap=25 << 20)
    monkeypatch.setattr(nn.parallel.DistributedDataParallel, "_get_active_ddp_module", lambda: wrapper)
    block = TwoLayers()
    with torch._dynamo.config.patch(optimize_ddp=True):
        torch._dynamo.reset()
        compiler = memory_budget.compiler(budget, "named")
        block.compile(backend=compile_graph if budget == 1 else compiler)
        block(torch.ones(1, 512)).sum().backward()
    assert len(graphs) == parts


@pytest.mark.ranks
def test_a_rank_rejects_a_model_with_experts(host: HostProcess) -> None:
    """The service knows the experts of some families only, before a worker has built the model."""
    report = host.run(tiny_task(BACKENDS["ddp"], activation_memory_budget=0.5, **(SHARED | {"model": MIXTRAL})))[0]
    assert report.failure is not None and report.failure.kind == "illegal", report
    assert "activation_memory_budget (0.5) is not for this training: its blocks route" in report.failure.message
    assert report.failure.message.endswith("use 1")


def test_without_a_budget_the_backend_is_named_as_before() -> None:
    assert memory_budget.compiler(1.0, "inductor") == "inductor"


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="inductor's kernels: SHARDTUNE_TEST_LONG=1")
def test_a_trials_peak_falls_as_the_budget_falls(run: Callable[..., RankReport]) -> None:
    def peak(budget: float) -> float:
        changes = {"micro_batch": 4, "sequence_length": 96, "parity_steps": 2, "compile": True}
        report = run({"kind": "ddp"}, **changes, activation_memory_budget=budget)
        assert report.memory is not None, report.failure
        return report.memory.peak_allocated_gib or 0.0

    whole, half, quarter = (peak(budget) for budget in (1.0, 0.5, 0.25))
    assert whole > half > quarter
