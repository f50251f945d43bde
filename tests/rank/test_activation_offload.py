"""Blocks' inputs in host memory train what inputs on the device train, on every backend; what does not move is caught.

More combinations, and four ranks, with SHARDTUNE_TEST_LONG=1.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import evaluate
from shardtune.tuner.prediction.shapes.config_shape import from_config
from shardtune.workers.blocks import checkpointing, prepare
from shardtune.workers.blocks.host_inputs import HostInputs, OffloadError
from shardtune.workers.blocks.host_link import CpuLink
from shardtune.workers.rank import classify
from shardtune.workers.rank.model import build
from tests.rank.helpers.loss_ranks import assert_same, compared
from tests.support.long_run import IS_LONG as LONG
from tests.support.long_run import telling
from tests.support.ranks.tiny_tasks import BACKENDS, GPT2, LLAMA, MIXTRAL, tiny_task

OFFLOADED: dict[str, Any] = {"activation_checkpointing": "full", "activation_offload": True}
SHARED: dict[str, Any] = OFFLOADED | {"micro_batch": 2, "parity_steps": 3, "max_grad_norm": 0.3}
"""Two micro batches a rank and step; the norm is clipped."""
BOUND = {"loss": 1e-6, "norm": 1e-5, "weight": 1e-5}
SHORT_LLAMA = LLAMA | {"num_hidden_layers": 2}
LORA = {"kind": "lora", "rank": 4, "alpha": 8}
CASES: dict[str, TrialTask] = {
    **{name: tiny_task(strategy, model=SHORT_LLAMA, **SHARED) for name, strategy in BACKENDS.items()},
    "ddp, every 2nd block": tiny_task(BACKENDS["ddp"], checkpoint_every=2, **SHARED),
    "fsdp1, gpt2": tiny_task(BACKENDS["fsdp1"], model=GPT2, **SHARED),
    "zero-3, mixtral": tiny_task(BACKENDS["zero-3"], model=MIXTRAL, **SHARED),
    "fsdp2, bf16": tiny_task(BACKENDS["fsdp2"], model=SHORT_LLAMA, precision="bf16-mixed", **SHARED),
    "ddp, bf16 autocast": tiny_task(BACKENDS["ddp"], model=SHORT_LLAMA, precision="bf16-autocast", **SHARED),
    "zero-2, loss in chunks": tiny_task(BACKENDS["zero-2"], model=SHORT_LLAMA, loss="chunked", loss_chunk=24, **SHARED),
    "fsdp2, lora": tiny_task(BACKENDS["fsdp2"], model=SHORT_LLAMA, adapter=LORA, **SHARED),
    "ddp, last layers": tiny_task(BACKENDS["ddp"], adapter={"kind": "last_layers", "layers": 2}, **SHARED),
    "context parallel": tiny_task(BACKENDS["fsdp2"], model=SHORT_LLAMA, context_parallel=2, **SHARED),
    # Each micro batch costs a quarter of a second of dispatching distributed tensors.
    "tensor parallel": tiny_task(
        {"kind": "fsdp2", "dp_shard": 1, "tensor_parallel": 2},
        model=SHORT_LLAMA,
        **(SHARED | {"micro_batch": 4, "parity_steps": 2}),
    ),
}
OFTEN = (
    "zero-2",
    "zero-3",
    "fsdp2",
    "ddp, every 2nd block",
    "fsdp1, gpt2",
    "ddp, last layers",
    "context parallel",
    "tensor parallel",
)


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    tasks: dict[str, tuple[TrialTask, str | None]] = {
        name: (task, None) for name, task in CASES.items() if LONG or name in OFTEN
    }
    return compared(tasks, tmp_path_factory.mktemp("offload"))


@pytest.mark.ranks
@pytest.mark.parametrize("name", telling(CASES, OFTEN))
def test_inputs_in_host_memory_train_what_inputs_on_the_device_train(
    differences: dict[str, dict[str, float]], name: str
) -> None:
    assert_same(differences[name], BOUND)


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
def test_it_trains_the_same_on_meshes_of_four_ranks(tmp_path: Path) -> None:
    split = {"kind": "fsdp2", "dp_shard": 2, "tensor_parallel": 2}
    meshes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "tensor 2, sharded": (split, {}),
        "tensor 2, context 2": (split, {"context_parallel": 2}),
        "context 2, replicated": ({"kind": "fsdp2", "dp_shard": 2, "dp_replicate": 2}, {"context_parallel": 2}),
        "context 2, zero-3": (BACKENDS["zero-3"], {"context_parallel": 2}),
    }
    tasks = {
        name: (tiny_task(strategy, ranks=4, model=SHORT_LLAMA, **(SHARED | changes)), None)
        for name, (strategy, changes) in meshes.items()
    }
    for name, difference in compared(tasks, tmp_path, ranks=4).items():
        assert difference and all(difference[key] <= BOUND[key] for key in BOUND), (name, difference)


def test_as_many_bytes_move_as_are_predicted() -> None:
    task = tiny_task({"kind": "ddp"}, **SHARED)
    network: Any = build.build(task.model, task.workload)
    build.materialize(network, torch.device("cpu"), torch.float32, task.workload.seed, torch.float32)
    inputs = prepare.prepare_blocks(network, task.config)
    assert inputs is not None
    tokens = torch.zeros(task.config.micro_batch, task.workload.sequence_length, dtype=torch.int64)
    network(input_ids=tokens, labels=tokens).loss.backward()
    inputs.check()
    on_device = task.config.model_copy(update={"activation_offload": False})
    candidates = from_configs([on_device, task.config], task.workload.sequence_length, 2, task.workload.global_batch)
    predicted = evaluate(from_config(LLAMA), candidates, task.workload, task.cluster).memory.host
    assert inputs.bytes_out == inputs.bytes_back == pytest.approx(float(np.diff(predicted)[0]), rel=0.02)


@pytest.mark.ranks
def test_the_peak_of_a_cpu_rank_is_that_of_a_device(run: Callable[..., RankReport]) -> None:
    """Four inputs of 4 samples × 96 tokens × 64 × 4 bytes; one is used and one is ahead when the first block is reached."""

    def peak_bytes(offloads: bool) -> float:
        changes = {"activation_checkpointing": "full", "activation_offload": offloads, "micro_batch": 4}
        memory = run({"kind": "ddp"}, **changes, sequence_length=96, parity_steps=2).memory
        assert memory is not None and memory.peak_allocated_gib is not None
        return memory.peak_allocated_gib * 2**30

    one_input = 4 * 96 * 64 * 4
    saved = peak_bytes(offloads=False) - peak_bytes(offloads=True)
    # Where the peak is the loss, all four are away; in the last block's backward two of them are back.
    assert 2 * one_input <= saved <= 4.1 * one_input


class Block(nn.Module):
    """Block whose first operator saves its input once, as a layer norm does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return hidden + self.down(torch.relu(self.up(self.norm(hidden) + (0 if mask is None else mask))))


class Net(nn.Module):
    def __init__(self, blocks: int = 4, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, inputs: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = block(hidden, mask)
        return hidden.square().mean()


class NotedLink(CpuLink):
    """Link that notes what it is asked, and how many tensors it has on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.numbers: dict[int, int] = {}
        self.fetched: list[StorageWeakRef] = []
        self.most_fetched = 0

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = super().send(tensor)
        self.numbers[id(copy)] = len(self.numbers)
        self.notes.append(f"send {self.numbers[id(copy)]}")
        return copy

    def wait_until_sent(self) -> None:
        self.notes.append("sent")

    def fetch(self, copy: torch.Tensor) -> torch.Tensor:
        tensor = super().fetch(copy)
        self.notes.append(f"fetch {self.numbers[id(copy)]}")
        self.fetched.append(StorageWeakRef(tensor.untyped_storage()))
        self.most_fetched = max(self.most_fetched, sum(not each.expired() for each in self.fetched))
        return tensor

    def wait_until_fetched(self) -> None:
        self.notes.append("fetched")


CONFIG = TrialConfig(strategy=DdpConfig(), activation_checkpointing="full", activation_offload=True)


def prepared(net: Net, config: TrialConfig = CONFIG) -> HostInputs:
    inputs = prepare.prepare_blocks(net, config)
    assert inputs is not None
    return inputs


def gradients(net: Net, mask: torch.Tensor | None = None) -> list[torch.Tensor]:
    net.zero_grad()
    net(torch.randn(3, 8, generator=torch.Generator().manual_seed(1)), mask).backward()
    return [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]


def test_each_input_goes_out_once_and_comes_back_once() -> None:
    net, plain = Net(), Net()
    inputs = prepared(net)
    for step in (1, 2):
        assert all(map(torch.equal, gradients(net), gradients(plain)))
        inputs.check()
        assert inputs.bytes_out == inputs.bytes_back == step * 4 * 3 * 8 * 4


def test_backward_fetches_one_block_ahead_and_has_no_third_input_on_the_device() -> None:
    link, net = NotedLink(), Net(blocks=3)
    inputs = HostInputs(lambda _device: link)
    for block in checkpointing.apply([*net.blocks], "full"):
        inputs.offload(block)
    gradients(net)
    forward = ["send 0", "sent", "send 1", "sent", "send 2", "sent"]
    assert link.notes == [*forward, "fetch 2", "fetched", "fetch 1", "fetched", "fetch 0", "fetched"]
    assert link.most_fetched == 2


def test_a_checkpoint_outside_of_the_offload_is_caught() -> None:
    net, inputs = Net(), HostInputs()
    for block in net.blocks:
        inputs.offload(block)
    checkpointing.apply([*net.blocks], "full")
    with pytest.raises(OffloadError, match="as if the checkpoint were outside of the offload and had no effect"):
        gradients(net)


def test_blocks_without_a_checkpoint_are_caught() -> None:
    net, inputs = Net(), HostInputs()
    for block in net.blocks:
        inputs.offload(block)
    with pytest.raises(OffloadError, match=r"activation_offload \(true\) expects .* set it to false"):
        gradients(net)


def test_bytes_that_do_not_come_back_are_caught() -> None:
    net = Net()
    inputs = prepared(net)
    net(torch.randn(3, 8))
    with pytest.raises(OffloadError, match="384 bytes to host memory, and 0 came back"):
        inputs.check()


def test_a_step_that_moves_nothing_is_caught() -> None:
    net = Net()
    inputs = prepared(net)
    with torch.no_grad():
        net(torch.randn(3, 8))
    with pytest.raises(OffloadError, match="moved no input of a checkpointed block"):
        inputs.check()


def test_an_input_that_backward_needs_twice_is_caught() -> None:
    net = Net()
    prepared(net)
    loss = net(torch.randn(3, 8))
    loss.backward(retain_graph=True)
    with pytest.raises(OffloadError, match="backward asked for one twice"):
        loss.backward()


def test_a_block_that_takes_its_input_by_name_is_rejected() -> None:
    net = Net()
    prepared(net)
    with pytest.raises(OffloadError, match=r"call blocks as block\(hidden_states, …\)"):
        net.blocks[0](hidden=torch.randn(3, 8))


def test_a_block_that_changes_its_input_in_place_is_caught() -> None:
    net = Net()
    prepared(net)
    net.blocks[1].norm = nn.ReLU(inplace=True)
    with pytest.raises(
        OffloadError, match="changes its input in place: its gradients would be wrong; let the block make"
    ):
        gradients(net)


def test_what_all_blocks_share_stays_on_the_device() -> None:
    net, mask = Net(), torch.zeros(3, 8)
    inputs = prepared(net)
    gradients(net, mask)
    assert inputs.bytes_out == 4 * 3 * 8 * 4


def test_frozen_blocks_before_the_first_trained_one_keep_nothing_in_host_memory() -> None:
    net = Net()
    for module in (net.first, *net.blocks[:2]):
        module.requires_grad_(False)
    inputs = prepared(net)
    gradients(net)
    inputs.check()
    assert inputs.bytes_out == 2 * 3 * 8 * 4


@pytest.mark.parametrize("offloads", [True, False])
def test_the_input_of_a_block_is_freed_once_the_block_has_run(offloads: bool) -> None:
    net = Net()
    prepare.prepare_blocks(net, CONFIG.model_copy(update={"activation_offload": offloads}))
    hidden = net.first(torch.randn(3, 8))
    memory = StorageWeakRef(hidden.untyped_storage())
    output = net.blocks[0](hidden)
    del hidden
    assert memory.expired() == offloads and output.requires_grad


def test_only_checkpointed_blocks_are_offloaded() -> None:
    net = Net()
    inputs = prepared(net, CONFIG.model_copy(update={"checkpoint_every": 2}))
    gradients(net)
    inputs.check()
    assert inputs.bytes_out == 2 * 3 * 8 * 4


def test_offload_that_does_not_work_is_an_infeasible_configuration() -> None:
    error = OffloadError("activation_offload (true) moved nothing; set it to false")
    failure = classify.failure_of(error, "training", 0)
    assert failure.kind is FailureKind.ILLEGAL and failure.message == str(error)
