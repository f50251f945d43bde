"""LoRA beside 4-bit base weights: every backend trains what one process trains beside the values that 4 bits leave of its
weights."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from shardtune.api_schemas.training.adapters import Lora
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.workers.rank.classify import NumericsError, SetupError
from shardtune.workers.rank.model import adapters, build, weights
from shardtune.workers.rank.model.quantization import check, layers
from shardtune.workers.rank.strategies.base import TrainingSetup
from shardtune.workers.rank.strategies.registry import TRAINERS
from shardtune.workers.rank.training import model_summary
from shardtune.workers.rank.training.wrap import make_trainer
from tests.rank.helpers import faulty_ranks
from tests.rank.helpers.adapter_tasks import BF16, FP32, STRATEGIES, TWO_BLOCKS
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.long_run import telling, wide
from tests.support.ranks.predicted_memory import predicted_gib
from tests.support.ranks.reference_training import deviation, plain_adapter, train
from tests.support.ranks.tiny_tasks import GPT2, LLAMA, MIXTRAL, tiny_task

ranks = pytest.mark.ranks

QLORA: dict[str, Any] = {"kind": "lora", "rank": 4, "alpha": 8.0, "quantization": "nf4"}
TWICE = QLORA | {"double_quantization": True}
FULL = {"activation_checkpointing": "full"}
WIDE = LLAMA | {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 3}


def task_of(strategy: dict[str, Any], **changes: Any) -> TrialTask:
    defaults = {"model": TWO_BLOCKS, "parity_steps": 3, "adapter": QLORA, "micro_batch": 2, "max_grad_norm": 0.05}
    return tiny_task(strategy, **(defaults | changes))


TWO_TARGETS: dict[str, Any] = {"adapter": TWICE | {"targets": ["q_proj", "v_proj"]}}
SELECTIVE = {"activation_checkpointing": "selective"}


@ranks
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param("ddp", {}, id="ddp"),
        wide("zero-1", {}, id="zero-1"),
        pytest.param("zero-2", FULL, id="zero-2, full checkpointing"),
        pytest.param("fsdp2", FULL, id="fsdp2, full checkpointing"),
        pytest.param("fsdp2", {"adapter": TWICE, "seed": 3}, id="fsdp2, double quantisation"),
        pytest.param("ddp", TWO_TARGETS | SELECTIVE, id="ddp, two targets, selective checkpointing"),
        wide("ddp", TWO_TARGETS, id="ddp, two targets"),
        wide("ddp", SELECTIVE, id="ddp, selective checkpointing"),
        wide("fsdp2", {"loss": "chunked", "loss_chunk": 24}, id="fsdp2, chunks"),
        wide("zero-2", {"adapter": TWICE, "micro_batch": 4, "seed": 3}, id="zero-2, double quantisation"),
        wide("ddp", {"compile": True}, id="ddp, compiled"),
    ],
)
def test_each_backend_trains_as_one_process_does(host: HostProcess, name: str, changes: dict[str, Any]) -> None:
    """Two micro batches a step, and clipping that bites: Adam alone hides a wrong scale."""
    task = task_of(STRATEGIES[name], **changes)
    report = host.run(task)[0]
    assert report.status == "complete", report.failure
    differs = deviation(report.trajectory, train(task))
    assert all(differs[quantity] <= bound for quantity, bound in FP32.items()), differs
    assert all(step.grad_norm is not None and step.grad_norm > 0.05 for step in report.trajectory), "nothing is clipped"


@ranks
@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        (STRATEGIES["fsdp2"] | {"grad_sync": "last", "reshard_after_forward": False}, {"micro_batch": 1}),
        (STRATEGIES["fsdp2"] | {"cpu_offload": True}, {}),
        wide(STRATEGIES["fsdp2"] | {"dp_shard": 1, "dp_replicate": 2}, {}),
        wide(STRATEGIES["fsdp2"] | {"blocks_per_unit": 2}, {}),
        wide(STRATEGIES["zero-2"] | {"offload_optimizer": {"pin_memory": False}}, {}),
        wide(STRATEGIES["ddp"] | {"grad_sync": "last", "gradient_as_bucket_view": True}, {"micro_batch": 1}),
    ],
)
def test_no_knob_changes_the_training_beside_4_bit_weights(
    host: HostProcess, strategy: dict[str, Any], changes: dict[str, Any]
) -> None:
    task = task_of(strategy, **changes)
    report = host.run(task)[0]
    assert report.status == "complete", report.failure
    differs = deviation(report.trajectory, train(task))
    assert all(differs[quantity] <= bound for quantity, bound in FP32.items()), differs


@ranks
@pytest.mark.parametrize("name", telling(["ddp", "fsdp2", "zero-2"], ["fsdp2"]))
def test_bf16_trains_within_the_stated_bound(host: HostProcess, name: str) -> None:
    task = task_of(STRATEGIES[name], precision="bf16-mixed")
    report = host.run(task)[0]
    assert report.status == "complete", report.failure
    differs = deviation(report.trajectory, train(task))
    assert all(differs[quantity] <= bound for quantity, bound in BF16.items()), differs


def test_4_bits_are_told_from_weights_that_are_not_quantised() -> None:
    """The control: without quantisation the first losses already differ by more than any bound."""
    task = task_of(STRATEGIES["ddp"])
    plain = task_of(STRATEGIES["ddp"], adapter={"kind": "lora", "rank": 4, "alpha": 8.0})
    assert deviation(train(plain), train(task))["loss"] > 1e-5 > FP32["loss"]


@ranks
@pytest.mark.parametrize(
    "fault", telling(["none", "missing_all_reduce", "packed_weight_moves"], ["packed_weight_moves"])
)
def test_planted_faults_are_noticed(tmp_path: Path, fault: str) -> None:
    task = task_of(STRATEGIES["ddp"])
    (tmp_path / "task.json").write_text(task.model_dump_json())
    faulty_ranks.run_ranks(fault, tmp_path)
    report = RankReport.model_validate_json((tmp_path / "rank_0.json").read_text())
    if fault == "packed_weight_moves":
        assert report.failure is not None and report.failure.kind is FailureKind.NUMERICS
        assert "keeps base weights frozen, and those of model.layers.1.mlp.down_proj" in report.failure.message
        return
    assert report.status == "complete", report.failure
    differs = deviation(report.trajectory, train(task))
    agrees = all(differs[quantity] <= bound for quantity, bound in FP32.items())
    assert agrees is (fault == "none"), differs


@ranks
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        wide("ddp", {}),
        ("zero-2", {"precision": "bf16-mixed", "adapter": TWICE}),
        ("fsdp2", {"precision": "bf16-mixed"}),
        wide("fsdp2", {"adapter": TWICE} | FULL),
        wide("ddp", {"precision": "bf16-mixed"} | FULL),
    ],
)
def test_memory_beside_4_bit_weights_is_that_predicted(host: HostProcess, name: str, changes: dict[str, Any]) -> None:
    task = task_of(STRATEGIES[name], **({"model": WIDE} | changes))
    report = host.run(task)[0]
    assert report.status == "complete" and report.memory is not None, report.failure
    assert predicted_gib(task) == pytest.approx(report.memory.peak_allocated_gib, rel=0.1)


@ranks
@pytest.mark.parametrize(
    ("strategy", "changes", "words"),
    [
        (STRATEGIES["fsdp1"], {}, "strategy.kind ('fsdp1') cannot train beside quantised weights"),
        (STRATEGIES["zero-3"], {}, "strategy.stage (3) cannot train beside quantised weights"),
        (STRATEGIES["fsdp2"], {"compile": True}, "compile (true) cannot train beside quantised weights"),
        (STRATEGIES["fsdp2"], {"context_parallel": 2}, "context_parallel (2) gives each rank a part"),
        (STRATEGIES["ddp"], {"model": GPT2}, "would leave transformers' Conv1D layers in 16 bits"),
        (STRATEGIES["ddp"], {"model": MIXTRAL}, "would leave experts in one parameter in 16 bits"),
    ],
    ids=["fsdp1", "zero-3", "compiled fsdp2", "context", "gpt2", "mixtral"],
)
def test_what_cannot_train_beside_4_bit_weights_is_rejected_by_the_rank(
    host: HostProcess, strategy: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    failure = host.run(task_of(strategy, **changes))[0].failure
    assert failure is not None and failure.kind is FailureKind.ILLEGAL and words in failure.message, failure


def _build(adapter: dict[str, Any], dtype: torch.dtype = torch.float32) -> nn.Module:
    workload = Workload(sequence_length=32, global_batch=8, precision="fp32", adapter=adapter)
    built = build.build(ModelSpec.model_validate(TWO_BLOCKS), workload)
    adapters.install(built, workload.adapter, dtype)
    return built


def _placed(adapter: dict[str, Any] = QLORA) -> nn.Module:
    built = _build(adapter)
    build.materialize(built, torch.device("cpu"), torch.float32, 1, torch.float32)
    return built


def test_linear_layers_of_blocks_are_packed_and_nothing_else() -> None:
    """Half a byte for each weight, and a scale for 64; embeddings, norms, head and adapters keep their dtype."""
    model = _placed()
    packed = {name: p for name, p in model.named_parameters() if p.dtype == torch.uint8}
    assert len(packed) == 7 * 2 and all(".layers." in name and "base_layer" in name for name in packed)
    assert all(not p.requires_grad for p in packed.values())
    layer = model.get_submodule("model.layers.0.mlp.up_proj.base_layer")
    elements = LLAMA["hidden_size"] * LLAMA["intermediate_size"]
    assert (layer.weight.numel(), layer.quant_state.absmax.numel()) == (elements // 2, elements // 64)
    others = [p for name, p in model.named_parameters() if name not in packed]
    assert {p.dtype for p in others} == {torch.float32}


def test_at_most_one_layer_is_ever_held_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of 8 billion weights is built on a GPU that cannot hold it in 16 bits."""
    alive: list[int] = []
    pack_weight = layers.packed

    def watched(parameter: Any, fill: Any, device: torch.device) -> nn.Parameter:
        def fill_and_count(value: torch.Tensor) -> None:
            fill(value)
            alive.append(value.numel())

        weight = pack_weight(parameter, fill_and_count, device)
        assert weight.untyped_storage().nbytes() == alive[-1] // 2
        return weight

    monkeypatch.setattr(layers, "packed", watched)
    model = _placed()
    assert len(alive) == 14 and all(p.device.type == "cpu" for p in model.parameters())


def test_a_state_dict_has_no_scales_of_frozen_weights() -> None:
    assert not [name for name in _placed(TWICE).state_dict() if "absmax" in name or "quant" in name]


def test_a_checked_layer_left_in_16_bits_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: a wrapper puts a linear layer in place of a packed one."""

    def wrapper(model: Any, setting: TrainingSetup, _strategy: Any) -> str:
        build.materialize(model, torch.device("cpu"), torch.float32, 1, torch.float32)
        if left_out:
            attention = model.model.layers[1].self_attn
            attention.q_proj.base_layer = nn.Linear(64, 64, bias=False).requires_grad_(False)
        return "trainer"

    task = task_of(STRATEGIES["ddp"])
    context: Any = SimpleNamespace(device=torch.device("cpu"), world_size=2)
    monkeypatch.setitem(TRAINERS, "ddp", wrapper)
    for left_out in (False, True):
        message = r"packs the 14 frozen linear layers .* and 13 of them are packed, among others 1.self_attn.q_proj"
        with pytest.raises(NumericsError, match=message) if left_out else nullcontext():
            make_trainer(_build(QLORA), TrainingSetup.of(task, context))


@pytest.mark.parametrize("moved", ["weight", "scale", "scale of scales", "nothing"])
def test_a_change_of_packed_weights_or_scales_is_named_by_its_layer(moved: str) -> None:
    model = _placed(TWICE)
    frozen = check.FrozenWeights(model, Lora(quantization="nf4"))
    layer = model.get_submodule("model.layers.1.mlp.gate_proj.base_layer")
    if moved == "weight":
        layer.weight.data[3, 0] ^= 16
    elif moved == "scale":
        layer.quant_state.absmax[0] ^= 1
    elif moved == "scale of scales":
        layer.quant_state.state2.absmax *= 1.01
    with (
        nullcontext() if moved == "nothing" else pytest.raises(NumericsError, match=r"model\.layers\.1\.mlp\.gate_proj")
    ):
        frozen.require_unmoved()


def test_the_summary_counts_weights_and_flops_as_without_quantisation() -> None:
    summaries = [
        model_summary.of(
            ModelSpec.model_validate(TWO_BLOCKS), Workload(sequence_length=32, global_batch=8, adapter=adapter)
        )
        for adapter in (QLORA, plain_adapter(Lora.model_validate(QLORA)))
    ]
    assert summaries[0] == summaries[1] and summaries[0].training_flops_per_token is not None


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert adapters.trainable_kinds()[-1] == "qlora"
    monkeypatch.setattr(layers.importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else name)
    with pytest.raises(SetupError, match=r"needs bitsandbytes, which this worker lacks; install shardtune\[8bit\]"):
        _build(QLORA)
    assert "qlora" not in adapters.trainable_kinds()


def test_values_of_packed_weights_come_from_seed_and_name() -> None:
    first, second = (dict(_placed().named_parameters()) for _ in range(2))
    name = "model.layers.0.mlp.up_proj.base_layer.weight"
    assert torch.equal(first[name], second[name])
    other = "model.layers.1.mlp.up_proj.base_layer.weight"
    assert not torch.equal(first[name], first[other])
    value = torch.empty(4, 64)
    weights.filling("x", value.shape, 1)(value)
    assert value.std() == pytest.approx(0.02, rel=0.2)
