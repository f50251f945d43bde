"""Adapters train the same on every backend: each against one process over the whole global batch.

Each backend once with each kind of adapter or with checkpointing; all of them crossed with SHARDTUNE_TEST_LONG=1. ZeRO-3 runs with a persistence threshold of 0, so that every parameter is released and gathered again.
"""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from shardtune.api_schemas.training.adapters import Lora
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.workers.rank.model import adapters, build
from shardtune.workers.rank.training import model_summary
from tests.rank.helpers import faulty_ranks
from tests.rank.helpers.adapter_tasks import BF16, FP32, STRATEGIES, TWO_BLOCKS
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.long_run import telling, wide
from tests.support.ranks.predicted_memory import predicted_gib
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import GPT2, LLAMA, MIXTRAL, tiny_task

ranks = pytest.mark.ranks

LORA: dict[str, Any] = {"kind": "lora", "rank": 4, "alpha": 8.0}
LAST: dict[str, Any] = {"kind": "last_layers", "layers": 1}
ADAPTERS = {"lora": LORA, "last layers": LAST}
OFTEN = (
    *((name, "full", "lora") for name in STRATEGIES if name in ("ddp", "zero-3", "fsdp2")),
    *((name, "none", "last layers") for name in ("zero-1", "fsdp1 original")),
)
"""Each backend (FSDP1 and ZeRO-2 with LoRA below), and both adapters."""
CROSSED = [
    (pytest.param if case in OFTEN else wide)(case[0], case[1], ADAPTERS[case[2]], id="-".join(case))
    for case in itertools.product(STRATEGIES, ("none", "full"), ADAPTERS)
]


def run(host: HostProcess, strategy: dict[str, Any], **changes: Any) -> tuple[RankReport, dict[str, float]]:
    """Run a trial with clipping that bites, and return it with its largest deviations from one process."""
    defaults = {"model": TWO_BLOCKS, "parity_steps": 3, "adapter": LORA, "micro_batch": 2, "max_grad_norm": 0.05}
    task = tiny_task(strategy, **(defaults | changes))
    report = host.run(task)[0]
    assert report.status == "complete", report.failure
    return report, deviation(report.trajectory, train(task))


@ranks
@pytest.mark.parametrize(("name", "checkpointing", "adapter"), CROSSED)
def test_adapters_train_the_same_on_every_backend(
    host: HostProcess, name: str, checkpointing: str, adapter: dict[str, Any]
) -> None:
    """Two micro batches a step, with and without checkpointing of blocks whose inputs are frozen."""
    report, differs = run(host, STRATEGIES[name], activation_checkpointing=checkpointing, adapter=adapter)
    assert all(differs[quantity] <= bound for quantity, bound in FP32.items()), differs
    assert all(step.grad_norm is not None and step.grad_norm > 0.05 for step in report.trajectory), "nothing is clipped"


@ranks
@pytest.mark.parametrize(
    ("name", "model"),
    [
        pytest.param("fsdp1", GPT2, id="gpt2-fsdp1"),
        pytest.param("ddp", MIXTRAL, id="mixtral-ddp"),
        *(wide(name, GPT2, id=f"gpt2-{name}") for name in ("ddp", "zero-3", "fsdp2")),
        *(wide(name, MIXTRAL, id=f"mixtral-{name}") for name in ("zero-3", "fsdp1", "fsdp2")),
    ],
)
def test_adapters_of_other_families_train_the_same_in_the_predicted_memory(
    host: HostProcess, name: str, model: dict[str, Any]
) -> None:
    """A tied head, layers that are stored transposed, and a router with experts that are no linear layers."""
    report, differs = run(host, STRATEGIES[name], model=model, micro_batch=4)
    assert all(differs[quantity] <= bound for quantity, bound in FP32.items()), differs
    assert report.memory is not None and report.memory.peak_allocated_gib is not None
    # Without reuse, ZeRO-3 holds frozen weights longer than predicted: 10 % less was predicted for Mixtral, 13 % for a
    # wider Llama.
    allowed = 0.15 if name == "zero-3" else 0.1
    predicted = predicted_gib(tiny_task(STRATEGIES[name], model=model, micro_batch=4, adapter=LORA))
    assert predicted == pytest.approx(report.memory.peak_allocated_gib, rel=allowed)


LAST_OF_FSDP2 = STRATEGIES["fsdp2"] | {"grad_sync": "last", "reshard_after_forward": False}
UNCLIPPED: dict[str, Any] = {"optimizer": {"lr": 1.25e-3, "weight_decay": 0.0}, "max_grad_norm": None}
NAMED_TARGETS: dict[str, Any] = {"adapter": LORA | {"rslora": True, "targets": ["q_proj", "v_proj"]}}


@ranks
@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        wide(STRATEGIES["ddp"], {"compile": True}),
        wide(STRATEGIES["fsdp2"], {"compile": True}),
        (STRATEGIES["fsdp2"], {"context_parallel": 2}),
        wide(STRATEGIES["ddp"], {"context_parallel": 2}),
        wide(STRATEGIES["zero-3"], {"loss": "chunked", "loss_chunk": 24}),
        (STRATEGIES["fsdp2"], {"loss": "chunked", "loss_chunk": 24}),
        # Two at once, and each for itself in the long run.
        (LAST_OF_FSDP2, {"micro_batch": 1} | UNCLIPPED),
        (STRATEGIES["fsdp1"] | {"grad_sync": "last"}, {"micro_batch": 1} | NAMED_TARGETS),
        wide(LAST_OF_FSDP2, {"micro_batch": 1}),
        wide(STRATEGIES["fsdp1"] | {"grad_sync": "last"}, {"micro_batch": 1}),
        wide(STRATEGIES["fsdp2"] | {"dp_replicate": 2}, {"ranks": 4}),
        (STRATEGIES["fsdp2"] | {"cpu_offload": True}, {}),
        (STRATEGIES["zero-2"] | {"offload_optimizer": {"pin_memory": False}}, {}),
        wide(STRATEGIES["ddp"], NAMED_TARGETS),
        wide(STRATEGIES["fsdp2"], UNCLIPPED),
    ],
    ids=lambda value: " ".join(f"{key}={item}" for key, item in value.items() if "bucket" not in key),
)
def test_no_knob_changes_the_training_of_an_adapter(
    host: HostProcess, strategy: dict[str, Any], changes: dict[str, Any]
) -> None:
    _, differs = run(host, strategy, **changes)
    assert all(differs[quantity] <= bound for quantity, bound in FP32.items()), differs


@ranks
@pytest.mark.parametrize("name", telling(STRATEGIES, ["zero-3"]))
def test_bf16_base_weights_train_within_the_stated_bound(host: HostProcess, name: str) -> None:
    _, differs = run(host, STRATEGIES[name], precision="bf16-mixed")
    assert all(differs[quantity] <= bound for quantity, bound in BF16.items()), differs


@ranks
@pytest.mark.parametrize(
    "fault",
    # DDP without a fault trains above, and tests/rank/test_faults.py plants the missing all-reduce under every weight.
    [wide("none"), wide("missing_all_reduce"), "frozen_weight_moves", "dropout_left_on", "equal_rows"],
)
def test_planted_faults_of_adapters_are_noticed(tmp_path: Path, fault: str) -> None:
    """Equal rows on both ranks are the control: they must lie far outside of the bounds."""
    task = tiny_task({"kind": "ddp"}, model=TWO_BLOCKS, parity_steps=3, adapter=LORA, micro_batch=2)
    (tmp_path / "task.json").write_text(task.model_dump_json())
    faulty_ranks.run_ranks(fault, tmp_path)
    report = RankReport.model_validate_json((tmp_path / "rank_0.json").read_text())
    assert report.status == "complete", report.failure
    differs = deviation(report.trajectory, train(task))
    agrees = all(differs[quantity] <= bound for quantity, bound in FP32.items())
    assert agrees is (fault == "none"), differs
    if fault == "equal_rows":
        assert max(differs["loss"], differs["grad_norm"]) > 1e-3, differs


@ranks
@pytest.mark.parametrize(
    ("strategy", "model"),
    [
        ({"kind": "fsdp2", "dp_shard": 1, "tensor_parallel": 2}, TWO_BLOCKS),
        ({"kind": "fsdp2", "dp_shard": 1, "pipeline_parallel": 2}, TWO_BLOCKS),
        ({"kind": "fsdp2", "dp_shard": 2, "expert_parallel": 2}, MIXTRAL),
    ],
    ids=["tensor", "pipeline", "expert"],
)
def test_axes_that_cannot_train_an_adapter_are_rejected_before_training(
    host: HostProcess, strategy: dict[str, Any], model: dict[str, Any]
) -> None:
    task = tiny_task(strategy, model=model, adapter=LORA, micro_batch=2)
    failure = host.run(task)[0].failure
    assert failure is not None and failure.kind is FailureKind.ILLEGAL and "workload.adapter" in failure.message


def _build(model: dict[str, Any], adapter: dict[str, Any]) -> nn.Module:
    workload = Workload(sequence_length=32, global_batch=8, precision="fp32", adapter=adapter)
    built = build.build(ModelSpec.model_validate(model), workload)
    adapters.install(built, workload.adapter)
    return built


@pytest.mark.parametrize("model", [LLAMA, GPT2, MIXTRAL], ids=["llama", "gpt2", "mixtral"])
def test_lora_trains_what_peft_trains_on_all_linear_layers(model: dict[str, Any]) -> None:
    """PEFT's own `all-linear` on a model with memory for its weights, by name and shape of each trained parameter."""
    built = _build(model, LORA)
    plain = build.build(ModelSpec.model_validate(model), Workload(sequence_length=32, global_batch=8))
    build.materialize(plain, torch.device("cpu"), torch.float32, 0, torch.float32)
    peft_model = get_peft_model(plain, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    prefix = "base_model.model."
    # PEFT adapts stacked experts and their router, too; they are no linear layers, and trials leave them frozen.
    expected = {
        name.removeprefix(prefix): p.shape
        for name, p in peft_model.named_parameters()
        if p.requires_grad and not {"experts", "gate"} & set(name.split("."))
    }
    assert {name: p.shape for name, p in built.named_parameters() if p.requires_grad} == expected


def test_an_adapted_layer_adds_its_scaled_product() -> None:
    built = _build(LLAMA, LORA | {"rslora": True})
    build.materialize(built, torch.device("cpu"), torch.float32, 0, torch.float32)
    layer = built.get_submodule("model.layers.0.mlp.down_proj")
    inputs = torch.randn(3, LLAMA["intermediate_size"])
    first, second = (layer.get_submodule(f"{name}.default").weight for name in ("lora_A", "lora_B"))
    expected = inputs @ layer.get_submodule("base_layer").weight.T + 8.0 / 4**0.5 * (inputs @ first.T @ second.T)
    torch.testing.assert_close(layer(inputs), expected)


def test_a_target_that_matches_nothing_is_named_with_near_ones() -> None:
    with pytest.raises(ValueError, match=r"adapter\.targets \('q_porj'\) matches no linear layer.*did you mean q_proj"):
        _build(LLAMA, LORA | {"targets": ["q_porj"]})


def test_the_summary_counts_what_is_trained_and_no_gradients_of_frozen_weights() -> None:
    summary = {}
    for name, adapter in (("all", None), ("lora", LORA), ("last", LAST)):
        workload = Workload(sequence_length=32, global_batch=8, adapter=adapter)
        summary[name] = model_summary.of(ModelSpec.model_validate(LLAMA), workload)
    assert summary["all"].training_flops_per_token is None
    lora, last = summary["lora"], summary["last"]
    widths = [(64, 64), (64, 32), (64, 32), (64, 64), (64, 128), (64, 128), (128, 64)]
    assert lora.trainable == 4 * 4 * sum(inputs + outputs for inputs, outputs in widths)
    assert lora.trainable == sum(block.trainable_parameters or 0 for block in lora.blocks)
    assert last.trainable == last.blocks[-1].parameters and last.parameters == summary["all"].parameters
    assert lora.forward_flops_per_token is not None and lora.training_flops_per_token is not None
    # Backward through all blocks costs one more forward pass, and the gradients of the adapters little.
    assert 2.0 < lora.training_flops_per_token / lora.forward_flops_per_token < 2.4
    assert last.forward_flops_per_token is not None and last.training_flops_per_token is not None
    # Backward passes one block of four, and the head.
    assert 1.3 < last.training_flops_per_token / last.forward_flops_per_token < 2.2


def test_adapters_of_peft_are_offered_where_it_is_installed() -> None:
    assert adapters.trainable_kinds()[:2] == ["lora", "last_layers"]
    assert Lora().describe() == "LoRA r=16"
