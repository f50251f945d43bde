"""Files for axolotl, LLaMA-Factory and ms-swift: what they say, what they list as lost, and what they reject."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.exports import Export, ExportFormat
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.training.hub_source import HubSource
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.export import export
from tests.support.values import tool_keys
from tests.support.values.synthetic_studies import contender_of, study_of, with_adapter

EIGHT = Cluster(gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
FORMS: tuple[ExportFormat, ...] = ("axolotl", "llama-factory", "ms-swift")
NAMES = {"axolotl": "axolotl.yaml", "llama-factory": "llama_factory.yaml", "ms-swift": "ms_swift.yaml"}
DDP = TrialConfig(strategy=DdpConfig(static_graph=True), micro_batch=2)
DDP_IN_CHUNKS = DDP.model_copy(update={"loss": "chunked"})
FSDP2 = TrialConfig(strategy=Fsdp2Config(dp_shard=8), activation_checkpointing="full")
OFFLOADED = TrialConfig(strategy=Fsdp2Config(dp_replicate=2, dp_shard=4, cpu_offload=True, pin_memory=False))
ZERO = TrialConfig(strategy=ZeroConfig(stage=3), micro_batch=2, activation_checkpointing="full")
CONFIGS = {"ddp": DDP, "fsdp2": FSDP2, "offloaded": OFFLOADED, "zero": ZERO}
LORA = {"rank": 8, "alpha": 24, "rslora": True}
QLORA = {"rank": 8, "alpha": 24, "quantization": "nf4", "double_quantization": True}
LENGTHS = {"lengths": [[8, 10], [32, 4]], "layout": "grouped"}


def study(precision: str = "bf16-mixed", adapter: Any = None, data: Any = None) -> Study:
    plain = study_of("llama-tiny", precision, EIGHT, global_batch=32)
    adapted = plain if adapter is None else with_adapter(plain, adapter)
    if data is None:
        return adapted
    workload = Workload.model_validate({**dict(adapted.spec.workload), "data": data})
    return adapted.model_copy(update={"spec": adapted.spec.model_copy(update={"workload": workload})})


def exported(form: ExportFormat, config: TrialConfig = DDP, trained: Study | None = None) -> Export:
    return export(trained or study(), contender_of(config), form)


def values(form: ExportFormat, config: TrialConfig = DDP, trained: Study | None = None) -> dict[str, Any]:
    printed: dict[str, Any] = yaml.safe_load(exported(form, config, trained).files[NAMES[form]])
    return printed


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("adapter", [None, LORA, {"layers": 1}, QLORA], ids=["all", "lora", "last", "qlora"])
@pytest.mark.parametrize("data", [None, LENGTHS], ids=["rows", "lengths"])
def test_every_key_is_one_that_the_tool_reads(form: ExportFormat, config: TrialConfig, adapter: Any, data: Any) -> None:
    """axolotl and ms-swift take unknown keys without a word."""
    known = json.loads((tool_keys.FOLDER / f"{Path(NAMES[form]).stem}.json").read_text())["keys"]
    assert values(form, config, study(adapter=adapter, data=data)).keys() <= {*known}


@pytest.mark.parametrize(
    ("form", "stated"),
    [
        ("axolotl", {"micro_batch_size": 2, "gradient_accumulation_steps": 2, "sequence_len": 32, "optimizer": "adamw_torch_fused", "bf16": True, "sample_packing": False}),
        ("llama-factory", {"per_device_train_batch_size": 2, "cutoff_len": 32, "finetuning_type": "full", "bf16": True, "packing": False}),
        ("ms-swift", {"per_device_train_batch_size": 2, "max_length": 32, "tuner_type": "full", "torch_dtype": "float32", "bf16": True, "use_hf": True}),
    ],
)  # fmt: skip
def test_the_workload_is_said_in_the_tools_own_words(form: ExportFormat, stated: dict[str, Any]) -> None:
    printed = values(form)
    assert stated.items() <= printed.items()
    assert printed["max_grad_norm"] == 1.0 and printed["learning_rate"] == 3e-4 and printed["seed"] == 0
    # By default the Trainer waits for each micro batch's loss.
    assert printed["logging_nan_inf_filter"] is False


@pytest.mark.parametrize(
    ("form", "stated"),
    [
        ("axolotl", {"adapter": "lora", "lora_r": 8, "lora_alpha": 24, "lora_target_linear": True, "peft_use_rslora": True, "lora_qkv_kernel": False}),
        ("llama-factory", {"finetuning_type": "lora", "lora_rank": 8, "lora_alpha": 24, "lora_target": "all", "use_rslora": True}),
        ("ms-swift", {"tuner_type": "lora", "lora_rank": 8, "lora_alpha": 24.0, "target_modules": ["all-linear"], "use_rslora": True, "torch_dtype": "bfloat16"}),
    ],
)  # fmt: skip
def test_lora_is_said_with_each_of_its_numbers(form: ExportFormat, stated: dict[str, Any]) -> None:
    assert stated.items() <= values(form, FSDP2, study(adapter=LORA)).items()
    assert values(form, FSDP2, study(adapter=LORA))["lora_dropout"] == 0.0
    named = values(form, FSDP2, study(adapter={"targets": ["q_proj", "v_proj"]}))
    assert named.get("lora_target_modules", named.get("lora_target", named.get("target_modules"))) in (
        ["q_proj", "v_proj"],
        "q_proj,v_proj",
    )


@pytest.mark.parametrize(
    ("form", "key"), [("axolotl", "peft_use_dora"), ("llama-factory", "use_dora"), ("ms-swift", "use_dora")]
)
def test_dora_is_said_where_it_is_trained(form: ExportFormat, key: str) -> None:
    assert values(form, FSDP2, study(adapter=LORA | {"dora": True}))[key] is True
    assert key not in values(form, FSDP2, study(adapter=LORA))


def test_last_layers_are_said_without_a_neighbour() -> None:
    last = study(adapter={"layers": 1})
    assert values("axolotl", FSDP2, last)["unfrozen_parameters"] == ["^model.layers.0."]
    assert values("llama-factory", FSDP2, last)["freeze_trainable_layers"] == 1
    swift = values("ms-swift", FSDP2, last)
    assert (swift["freeze_parameters_ratio"], swift["trainable_parameters"]) == (1.0, ["model.layers.0."])


def test_each_wraps_the_section_that_exists() -> None:
    trainer = json.loads(exported("training-arguments", FSDP2).files["training_arguments.json"])["fsdp_config"]
    assert values("llama-factory", FSDP2)["fsdp_config"] == trainer
    assert values("axolotl", FSDP2)["fsdp_config"]["activation_checkpointing"] is True
    swift = json.loads(exported("ms-swift", FSDP2).files[values("ms-swift", FSDP2)["fsdp"]])
    assert swift["fsdp_config"]["fsdp_version"] == 2 and swift["fsdp_config"]["activation_checkpointing"] is True
    standard = exported("standard", ZERO).files["ds_config.json"]
    for form in FORMS:
        assert json.loads(exported(form, ZERO).files[values(form, ZERO)["deepspeed"]]) == json.loads(standard)


def test_checkpointing_is_off_where_the_trial_had_none_though_two_tools_default_to_it() -> None:
    assert values("llama-factory")["disable_gradient_checkpointing"] is True
    assert values("ms-swift")["gradient_checkpointing"] is False
    assert values("llama-factory", ZERO)["disable_gradient_checkpointing"] is False
    assert values("ms-swift", ZERO)["gradient_checkpointing_kwargs"] == {"use_reentrant": False}


def test_axolotl_says_what_the_trainers_file_cannot() -> None:
    selective = FSDP2.model_copy(update={"activation_checkpointing": "selective"})
    assert "aten::mm" in values("axolotl", selective)["selective_checkpointing"]["save"]
    offloaded = values("axolotl", OFFLOADED)
    assert (offloaded["dp_replicate_size"], offloaded["dp_shard_size"]) == (2, 4)
    assert offloaded["fsdp_config"]["cpu_offload_pin_memory"] is False
    compiled = FSDP2.model_copy(update={"compile": True})
    assert values("axolotl", compiled)["torch_compile_regional"] is True
    for config in (selective, OFFLOADED, compiled):
        lost = exported("axolotl", config).lossy
        assert not any(
            line.startswith(("activation_checkpointing", "pin_memory", "dp_replicate", "compile")) for line in lost
        )
        assert exported("axolotl", config).lossy_config is None
    assert "torch_compile_regional" not in values("axolotl", ZERO.model_copy(update={"compile": True}))


@pytest.mark.parametrize("form", FORMS)
def test_what_a_tool_cannot_say_is_listed_in_the_file_and_kept_as_a_configuration(form: ExportFormat) -> None:
    answer = exported(
        form, TrialConfig(strategy=Fsdp2Config(dp_replicate=2, dp_shard=4, forward_prefetch=2), loss="chunked")
    )
    assert any(line.startswith("forward_prefetch: 2") for line in answer.lossy)
    assert any(line.startswith("loss: chunks of 1024") for line in answer.lossy)
    assert all(line in answer.files[NAMES[form]] for line in answer.lossy)
    groups = [line for line in answer.lossy if line.startswith("dp_replicate")]
    assert bool(groups) == (form != "axolotl")
    assert answer.lossy_config is not None and answer.lossy_config.strategy == Fsdp2Config(
        dp_replicate=2 if form == "axolotl" else 1, dp_shard=4 if form == "axolotl" else 8
    )


def test_the_trainers_file_names_the_program_whose_loss_is_in_chunks() -> None:
    """TRL 1.16 has no other loss, and warns of the older `loss_type`, chunked_nll."""
    (note,) = [line for line in exported("training-arguments", DDP_IN_CHUNKS).lossy if "TRL" in line]
    assert note == "loss: TRL 1.16 always computes it in chunks, of a size of its own: export for trl to keep chunks"
    assert not any("TRL" in line for line in exported("training-arguments", DDP).lossy)


@pytest.mark.parametrize(("form", "counts"), [("trl", True), ("ms-swift", True), ("axolotl", False)])
def test_metrics_that_a_tool_computes_in_each_micro_batch_are_listed(form: ExportFormat, counts: bool) -> None:
    """They wait for the GPU, and neither TRL 1.16 nor ms-swift 4.6 has a switch for them."""
    assert any(line.startswith("metrics:") for line in exported(form).lossy) == counts


def test_trl_says_where_it_forces_reentrant_checkpointing() -> None:
    """For PEFT beside ZeRO-3 (TRL 1.16), whatever the file says."""
    note = "activation_checkpointing: no reentrant autograd was measured"
    assert any(line.startswith(note) for line in exported("trl", ZERO, study(adapter=LORA)).lossy)
    for config, adapter in (
        (ZERO, None),
        (FSDP2, LORA),
        (ZERO.model_copy(update={"activation_checkpointing": "none"}), LORA),
    ):
        assert not any(line.startswith(note) for line in exported("trl", config, study(adapter=adapter)).lossy)


def test_static_graph_is_lost_in_axolotl_alone() -> None:
    lost = {form: any(line.startswith("static_graph") for line in exported(form).lossy) for form in FORMS}
    assert lost == {"axolotl": True, "llama-factory": False, "ms-swift": False}


def test_lengths_are_said_as_far_as_each_tool_can() -> None:
    multiple = study(data=LENGTHS | {"pad_to_multiple_of": 16})
    assert values("axolotl", DDP, multiple)["pad_to_multiple_of"] == 16
    assert values("axolotl", DDP, study(data=LENGTHS))["pad_to_sequence_len"] is False
    assert values("axolotl")["pad_to_sequence_len"] is True
    assert values("llama-factory", DDP, multiple)["train_sampling_strategy"] == "group_by_length"
    assert values("ms-swift", DDP, multiple)["group_by_length"] is True
    for form in ("llama-factory", "ms-swift"):
        assert any(line.startswith("data.pad_to_multiple_of: 16") for line in exported(form, DDP, multiple).lossy)
    assert any("divides each rank's loss" in line for line in exported("axolotl", DDP, multiple).lossy)


def test_states_in_bfloat16_are_said_by_each_tools_own_switch() -> None:
    low = study("bf16-true")
    assert values("llama-factory", DDP, low)["pure_bf16"] is True and values("llama-factory", DDP, low)["bf16"] is False
    assert "pure_bf16" not in values("llama-factory", ZERO, low)
    assert values("ms-swift", DDP, low)["torch_dtype"] == "bfloat16" and values("ms-swift", DDP, low)["bf16"] is False


def test_the_model_is_the_repository_at_its_commit() -> None:
    hub = HubSource(id="Qwen/Qwen3-8B", revision="ab" * 20)
    plain = study()
    spec = plain.spec.model_copy(update={"model": plain.spec.model.model_copy(update={"hub": hub})})
    pinned = plain.model_copy(update={"spec": spec})
    for form, keys in (
        ("axolotl", ("base_model", "revision_of_model")),
        ("llama-factory", ("model_name_or_path", "model_revision")),
        ("ms-swift", ("model", "model_revision")),
    ):
        printed = values(form, DDP, pinned)  # type: ignore[arg-type]
        assert tuple(printed[key] for key in keys) == ("Qwen/Qwen3-8B", "ab" * 20)


def test_a_scale_that_is_no_whole_number_is_rejected_where_the_tool_takes_one() -> None:
    odd = study(adapter={"rank": 8, "alpha": 12.5})
    for form in ("axolotl", "llama-factory"):
        with pytest.raises(ValueError, match=r"adapter.alpha \(12.5\).*--format trl"):
            exported(form, FSDP2, odd)
    assert values("ms-swift", FSDP2, odd)["lora_alpha"] == 12.5


@pytest.mark.parametrize("form", FORMS)
def test_what_no_tool_has_is_rejected_with_the_remedy(form: ExportFormat) -> None:
    with pytest.raises(ValueError, match=r"'fsdp1'.*export another"):
        exported(form, TrialConfig(strategy=Fsdp1Config(dp_shard=8)))
    with pytest.raises(ValueError, match=r"tensor_parallel \(2\).*--which"):
        exported(form, TrialConfig(strategy=Fsdp2Config(dp_shard=4, tensor_parallel=2)))


@pytest.mark.parametrize(
    ("form", "stated"),
    [
        ("axolotl", {"adapter": "qlora", "load_in_4bit": True, "bnb_config_kwargs": {"bnb_4bit_use_double_quant": True}}),
        ("llama-factory", {"finetuning_type": "lora", "quantization_bit": 4, "quantization_type": "nf4", "double_quantization": True}),
        ("ms-swift", {"tuner_type": "lora", "quant_bits": 4, "quant_method": "bnb", "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16"}),
    ],
)  # fmt: skip
def test_4_bit_weights_are_said_in_the_tools_own_words(form: ExportFormat, stated: dict[str, Any]) -> None:
    """Each tool quantises scales unless it is told otherwise, so the switch is always written."""
    assert stated.items() <= values(form, trained=study(adapter=QLORA)).items()
    once = str(values(form, trained=study(adapter=QLORA | {"double_quantization": False})))
    assert "double_quantization': False" in once or "bnb_4bit_use_double_quant': False" in once
    assert not [key for key in values(form, trained=study(adapter=LORA)) if "quant" in key or "4bit" in key]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("config", [DDP, FSDP2], ids=["ddp", "fsdp2"])
def test_axolotl_alone_keeps_norms_in_float32_beside_4_bit_weights_and_not_under_fsdp(
    form: ExportFormat, config: TrialConfig
) -> None:
    """It leaves out PEFT's preparation where FSDP shards 4-bit weights (0.21, `_prepare_model_for_quantization`)."""
    lossy = exported(form, config, study(adapter=QLORA)).lossy
    norms = [line for line in lossy if "prepares the model by PEFT" in line]
    assert bool(norms) == (form == "axolotl" and config == DDP)
    assert all("activations between blocks may take twice the memory" in line for line in norms)


def test_the_storage_of_packed_weights_lets_fsdp_gather_a_unit_at_once() -> None:
    assert values("ms-swift", FSDP2, study(adapter=QLORA))["bnb_4bit_quant_storage"] == "bfloat16"
    assert values("ms-swift", DDP, study(adapter=QLORA))["bnb_4bit_quant_storage"] == "uint8"


def test_a_trial_without_a_verdict_is_named_so() -> None:
    assert "(not confirmed yet)" in exported("trl").files["trl_sft.yaml"]
