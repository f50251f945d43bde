"""What a workload says about an adapter, and which of it is rejected with a remedy."""

from typing import Any

import pytest
from pydantic import ValidationError

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.recommendations.tuning_targets import TuningTarget
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig, sample_groups
from shardtune.api_schemas.strategies.recipe_support import lora_support
from shardtune.api_schemas.training import adapter_targets
from shardtune.api_schemas.training.adapters import LastLayers, Lora
from shardtune.api_schemas.training.models import ModelSpec, preset
from shardtune.api_schemas.training.workload import Workload, WorkloadRequest

SIZES: dict[str, Any] = {"sequence_length": 64, "global_batch": 8}


def adapter(value: Any) -> Any:
    return WorkloadRequest(**SIZES, adapter=value).adapter


def test_an_adapter_is_named_in_full_by_its_kind_or_by_its_fields() -> None:
    assert adapter("lora") == adapter({}) == adapter({"kind": "lora", "rank": 16}) == Lora()
    assert adapter({"layers": 2}) == LastLayers(layers=2)
    assert adapter(None) is None
    stored = Workload(**SIZES, adapter={"layers": 2})
    assert Workload.model_validate_json(stored.model_dump_json()) == stored


def test_the_order_of_targets_does_not_matter() -> None:
    assert adapter({"targets": ["v_proj", "q_proj", "q_proj"]}) == adapter({"targets": ["q_proj", "v_proj"]})
    assert adapter({"targets": "q_proj"}).targets == ("q_proj",)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"rank": 0}, "greater than or equal to 1"),
        ({"dropout": 0.05}, r"dropout \(0.05\) makes losses depend on how the batch is divided.*set it to 0"),
        ({"targets": []}, r"targets \(an empty list\) adapts nothing"),
        ({"targets": ["model.layers.0.self_attn.q_proj"]}, "names one block; every block gets the adapter"),
        ({"load_in_4bit": True}, r"load_in_4bit \(True\) is another library's name; use quantization \('nf4'\)"),
        ({"load_in_8bit": True}, r"load_in_8bit \(True\) asks for 8-bit base weights, which no trial trains"),
        ({"quantization_bit": 8}, r"quantization_bit \(8\) asks for 8-bit base weights"),
        ({"bnb_4bit_use_double_quant": True}, "did you mean double_quantization"),
        ({"quantization": "fp4"}, "Input should be 'nf4'"),
        ({"double_quantization": True}, r"double_quantization \(true\) .* and quantization is null; set"),
        ({"dora": True, "quantization": "nf4"}, r"dora \(true\) with quantization \('nf4'\)"),
        ({"use_dora": True}, r"use_dora \(True\) is PEFT's name; did you mean dora\?"),
        (
            {"kind": "dora", "dora": False},
            r"dora \(false\) contradicts kind \('dora'\), .*leave out dora, or use kind 'lora'",
        ),
        ({"kind": "dora", "dora": None}, r"dora \(null\) contradicts kind \('dora'\)"),
        ({"kind": "qlora", "quantization": None}, r"quantization \(null\) contradicts kind \('qlora'\), .*\(\"nf4\"\)"),
        ({"kind": "qlora", "dora": True}, r"dora \(true\) with quantization \('nf4'\).*leave out one of them"),
        ({"kind": "dora", "dora": "no"}, "boolean"),
        ({"kind": "dora", "layers": 2}, "not permitted"),
        ({"kind": "last_layers", "layers": 2, "dora": True}, "not permitted"),
        ({"kind": ["dora"]}, r"kind \(\['dora'\]\) is unknown; use one of lora, last_layers, qlora, dora"),
        ({"dora": True, "dropout": 0.1}, "DoRA then multiplies by each adapted layer's frozen weight once more"),
        ({"r": 16}, r"r \(16\) is PEFT's name; did you mean rank\?"),
        ({"kind": "prefix"}, r"kind \('prefix'\) is unknown; use one of lora, last_layers"),
        ({"layers": 0}, "greater than or equal to 1"),
        (16, r"adapter \(16\) must be an object"),
    ],
)
def test_what_no_trial_trains_is_rejected_with_the_remedy(value: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        adapter(value)


def test_an_optimizer_of_whole_matrices_is_rejected() -> None:
    with pytest.raises(ValidationError, match=r"optimizer.kind \('muon'\) updates whole matrices.*use adamw"):
        Workload(**SIZES, optimizer="muon", adapter="lora")


def test_a_workload_without_an_adapter_keeps_its_key() -> None:
    """Stored answers of trainings of all weights are found under keys that have no word about adapters."""
    cluster = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8)
    plain, adapted = (
        TuningTarget(preset("llama-tiny"), Workload(**SIZES, adapter=value), cluster) for value in (None, "lora")
    )
    assert "adapter" not in plain.canonical()["workload"]
    lora = {"kind": "lora", "rank": 16, "alpha": 32.0, "targets": "all-linear", "rslora": False, "dropout": 0.0}
    assert adapted.canonical()["workload"]["adapter"] == lora
    with_magnitudes = TuningTarget(preset("llama-tiny"), Workload(**SIZES, adapter="dora"), cluster)
    assert with_magnitudes.canonical()["workload"]["adapter"] == lora | {"dora": True}


@pytest.mark.parametrize(
    ("axis", "strategy"),
    [
        ("tensor_parallel", {"kind": "fsdp2", "dp_shard": 1, "tensor_parallel": 2}),
        ("pipeline_parallel", {"kind": "fsdp2", "dp_shard": 1, "pipeline_parallel": 2}),
        ("expert_parallel", {"kind": "fsdp2", "dp_shard": 2, "expert_parallel": 2}),
    ],
)
def test_meshes_that_cannot_train_an_adapter_are_rejected(axis: str, strategy: dict[str, Any]) -> None:
    cluster = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8)
    config = TrialConfig.model_validate({"strategy": strategy})
    with pytest.raises(ValueError, match=rf"{axis} \(2\) .*workload.adapter: LoRA r=16\); use 1"):
        sample_groups.check(config, cluster, Workload(**SIZES, adapter="lora"))


@pytest.mark.parametrize(
    ("model", "value", "message"),
    [
        ("llama-tiny", {"targets": ["q_porj"]}, r"\('q_porj'\) matches no linear layer.*did you mean q_proj"),
        ("gpt2-tiny", {"targets": ["q_proj"]}, r"\('q_proj'\) matches no linear layer.*c_proj"),
        ("mixtral-tiny", {"targets": ["gate_proj"]}, "matches no linear layer"),
        ("llama-tiny", {"targets": ["lm_head"]}, "matches no linear layer in the model's repeated blocks"),
        ("llama-tiny", {"layers": 99}, r"adapter.layers \(99\) is more than the model's"),
    ],
)
def test_an_adapter_that_the_model_cannot_have_is_rejected_with_near_names(
    model: str, value: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        adapter_targets.check_model(adapter(value), preset(model))


def test_own_code_builds_its_adapter_itself() -> None:
    own = ModelSpec(name="x", script="mine")
    with pytest.raises(ValueError, match=r"adapter .* model.script builds your own; leave out adapter"):
        adapter_targets.check_model(Lora(), own)


def test_targets_are_matched_by_the_end_of_their_path() -> None:
    paths = ["self_attn.q_proj", "mlp.up_proj"]
    assert adapter_targets.targeted_paths(paths, Lora(targets=("q_proj",))) == ["self_attn.q_proj"]
    assert adapter_targets.targeted_paths(paths, Lora(targets=("mlp.up_proj",))) == ["mlp.up_proj"]
    assert adapter_targets.targeted_paths(paths, Lora()) == paths
    with pytest.raises(ValueError, match="matches no linear layer"):
        adapter_targets.targeted_paths(paths, Lora(targets=("proj",)))


QLORA: dict[str, Any] = {"kind": "lora", "quantization": "nf4"}


def test_qlora_is_lora_beside_4_bit_weights() -> None:
    """axolotl's word for it, and the words in which it is shown."""
    assert adapter("qlora") == adapter(QLORA) == Lora(quantization="nf4")
    assert adapter({"kind": "qlora", "rank": 8, "double_quantization": True}).describe() == "QLoRA nf4 double r=8"
    assert (adapter("qlora").requirement, adapter("lora").requirement) == ("qlora", "lora")


def test_dora_is_lora_with_magnitudes() -> None:
    assert adapter("dora") == adapter({"dora": True}) == Lora(dora=True)
    assert adapter({"kind": "dora", "rank": 8, "rslora": True}).describe() == "rsDoRA r=8"
    assert adapter("dora").requirement == "dora"


def test_an_adapter_beside_16_bit_weights_keeps_its_key() -> None:
    """Stored answers of LoRA are found under keys that have no word about quantisation."""
    cluster = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8)
    plain, packed = (
        TuningTarget(preset("llama-tiny"), Workload(**SIZES, adapter=value), cluster).canonical()["workload"]["adapter"]
        for value in ("lora", "qlora")
    )
    assert not [name for name in plain if "quantization" in name]
    assert packed == plain | {"quantization": "nf4", "double_quantization": False}


def test_autocast_beside_4_bit_weights_is_rejected() -> None:
    """By the check of a configuration: answers are looked up under every precision."""
    cluster = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8)
    workload = Workload(**SIZES, adapter="qlora", precision="bf16-autocast")
    with pytest.raises(ValueError, match=r"precision \('bf16-autocast'\) with adapter.quantization .*use bf16-mixed"):
        sample_groups.check(TrialConfig(strategy=DdpConfig()), cluster, workload)


@pytest.mark.parametrize(
    ("model", "why"), [("gpt2-tiny", "Conv1D, which has no 4-bit form"), ("mixtral-tiny", "experts are stacked")]
)
def test_models_that_would_stay_in_16_bits_are_rejected(model: str, why: str) -> None:
    with pytest.raises(ValueError, match=rf"adapter.quantization \('nf4'\) cannot quantise .*{why}"):
        adapter_targets.check_model(adapter("qlora"), preset(model))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"strategy": {"kind": "fsdp1", "dp_shard": 2}},
            r"strategy.kind \('fsdp1'\) cannot train beside quantised weights",
        ),
        ({"strategy": {"kind": "zero", "stage": 3}}, r"strategy.stage \(3\) .*use stage 1 or 2, ddp or fsdp2"),
        ({"strategy": {"kind": "zero", "stage": 1, "deepcompile": True}}, r"deepcompile \(true\) .*set it to false"),
        (
            {"strategy": {"kind": "fsdp2", "dp_shard": 2}, "compile": True},
            r"compile \(true\) .*under fsdp2: .*the graph breaks at each linear layer.*set it to false",
        ),
        (
            {"strategy": {"kind": "ddp"}, "context_parallel": 2},
            r"context_parallel \(2\) .*use 1, or leave out quantization",
        ),
    ],
)
def test_strategies_that_cannot_train_beside_4_bit_weights_are_rejected(config: dict[str, Any], message: str) -> None:
    cluster = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8)
    with pytest.raises(ValueError, match=message):
        sample_groups.check(TrialConfig.model_validate(config), cluster, Workload(**SIZES, adapter="qlora"))
    assert not lora_support.can_train(TrialConfig.model_validate(config), adapter("qlora"))
    assert lora_support.can_train(TrialConfig.model_validate(config), adapter("lora"))


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (
            {"kind": "fsdp1", "dp_shard": 2},
            r"strategy.kind \('fsdp1'\) cannot train magnitudes .*use ddp, fsdp2 or zero",
        ),
        ({"kind": "zero", "stage": 1, "deepcompile": True}, r"deepcompile \(true\) cannot train magnitudes"),
    ],
)
def test_strategies_that_cannot_train_magnitudes_are_rejected(strategy: dict[str, Any], message: str) -> None:
    cluster = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8)
    config = TrialConfig.model_validate({"strategy": strategy})
    with pytest.raises(ValueError, match=message):
        sample_groups.check(config, cluster, Workload(**SIZES, adapter="dora"))
    assert not lora_support.can_train(config, adapter("dora"))


def test_a_search_with_magnitudes_leaves_out_fsdp1_and_says_so() -> None:
    assert lora_support.trainable_backends(("ddp", "fsdp1", "zero"), adapter("dora")) == ("ddp", "zero")
    (note,) = lora_support.dropped_notes(("ddp", "fsdp1", "zero"), {}, adapter("dora"), compiles=True)
    assert note.startswith("space.backends (fsdp1) cannot train magnitudes (workload.adapter.dora: true)")


def test_a_search_beside_4_bit_weights_leaves_out_what_cannot_train_and_says_so() -> None:
    qlora = adapter("qlora")
    assert lora_support.trainable_backends(("ddp", "fsdp1", "zero"), qlora) == ("ddp", "zero")
    assert lora_support.trainable_backends(("fsdp1",), adapter("lora")) == ("fsdp1",)
    with pytest.raises(ValueError, match=r"space.backends \(fsdp1\) cannot train .*add ddp, fsdp2"):
        lora_support.trainable_backends(("fsdp1",), qlora)
    notes = lora_support.dropped_notes(("ddp", "fsdp1", "zero"), {}, qlora)
    assert [note.partition(" cannot")[0] for note in notes] == ["space.backends (fsdp1)", "space.knobs.stage (3)"]
    assert lora_support.dropped_notes(("fsdp1", "zero"), {"stage": [1, 2]}, adapter("lora")) == ()
    compiled = lora_support.dropped_notes(("ddp", "fsdp2"), {}, qlora, compiles=True)
    assert [note.partition(" cannot")[0] for note in compiled] == ["space.knobs.compile (true)"]
    assert lora_support.dropped_notes(("ddp",), {}, qlora, compiles=True) == ()
