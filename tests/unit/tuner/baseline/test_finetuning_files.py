"""Files of axolotl, LLaMA-Factory and ms-swift as baselines: read as the tools read them, contradictions named."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.service.cli import baseline_file, study_file
from shardtune.service.cli.errors import InputError
from shardtune.service.studies.changes import user_file
from shardtune.tuner.baseline import ResolvedBaseline, resolve_with_notes
from shardtune.tuner.export import export
from tests.support.values.synthetic_studies import contender_of, study_of, with_adapter

GPUS = Cluster(gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
LORA = {"rank": 8, "alpha": 24.0, "rslora": True}
NAMES = {"axolotl": "axolotl.yaml", "llama-factory": "llama_factory.yaml", "ms-swift": "ms_swift.yaml"}
CONFIGS = {
    "ddp": TrialConfig(strategy=DdpConfig(bucket_cap_mb=7), micro_batch=2),
    "fsdp2": TrialConfig(strategy=Fsdp2Config(dp_shard=8, grad_sync="last"), activation_checkpointing="full"),
    "offloaded": TrialConfig(strategy=Fsdp2Config(dp_shard=8, cpu_offload=True, grad_sync="last")),
    "zero": TrialConfig(strategy=ZeroConfig(stage=3), micro_batch=2, activation_checkpointing="full"),
}
AXOLOTL: dict[str, Any] = {
    "base_model": "x/y",
    "sequence_len": 64,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 1,
}
FACTORY: dict[str, Any] = {"finetuning_type": "full", "cutoff_len": 64, "per_device_train_batch_size": 2, "bf16": True}
SWIFT: dict[str, Any] = {"tuner_type": "full", "max_length": 64, "per_device_train_batch_size": 2, "bf16": True}

QLORA: dict[str, Any] = {
    "adapter": "qlora",
    "load_in_4bit": True,
    "lora_r": 8,
    "lora_alpha": 16,
    "lora_target_linear": True,
}


def workload(**changes: Any) -> Workload:
    base = Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["bf16-mixed"])
    return Workload.model_validate({**dict(base), **changes})


def read(values: dict[str, Any], trained: Workload | None = None, cluster: Cluster = GPUS) -> ResolvedBaseline:
    return resolve_with_notes(values, trained or workload(), cluster)


def config_of(values: dict[str, Any], trained: Workload | None = None) -> TrialConfig:
    config = read(values, trained).config
    assert config is not None
    return config


@pytest.mark.parametrize("tool", NAMES)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("adapter", [None, LORA, {"layers": 1}], ids=["all", "lora", "last"])
def test_an_exported_file_is_read_back_as_the_configuration_that_it_runs(
    tool: Any, name: str, adapter: Any, tmp_path: Path
) -> None:
    study = study_of("llama-tiny", "bf16-mixed", GPUS, global_batch=32)
    study = study if adapter is None else with_adapter(study, adapter)
    answer = export(study, contender_of(CONFIGS[name]), tool)
    for file, text in answer.files.items():
        (tmp_path / file).write_text(text)
    values = baseline_file.read(NAMES[tool], tmp_path)
    config, notes = resolve_with_notes(values, study.spec.workload, GPUS, study.spec.model)
    expected = answer.lossy_config or CONFIGS[name]
    assert config == expected.model_copy(
        update={"strategy": expected.strategy.model_validate({**expected.strategy.model_dump()})}
    ), notes


def test_defaults_are_those_of_the_tool() -> None:
    assert config_of({"base_model": "x/y", "gradient_accumulation_steps": 2}).micro_batch == 1
    assert config_of(FACTORY | {"gradient_accumulation_steps": 1}).activation_checkpointing == "full"
    assert config_of(FACTORY | {"disable_gradient_checkpointing": True}).activation_checkpointing == "none"
    # ms-swift accumulates to 16 samples.
    assert config_of(SWIFT).micro_batch == 2
    assert (
        config_of({"tuner_type": "full", "torch_dtype": "bfloat16", "gradient_checkpointing": False}).micro_batch == 1
    )


def test_sharding_is_read_in_each_tools_words() -> None:
    mesh = AXOLOTL | {"fsdp_config": {"reshard_after_forward": False}, "dp_replicate_size": 2, "dp_shard_size": 4}
    assert config_of(mesh).strategy == Fsdp2Config(
        dp_replicate=2, dp_shard=4, reshard_after_forward=False, grad_sync="last"
    )
    assert isinstance(config_of(FACTORY | {"fsdp": "full_shard auto_wrap"}).strategy, Fsdp1Config)
    swift = config_of(SWIFT | {"fsdp": "fsdp2"})
    assert isinstance(swift.strategy, Fsdp2Config) and swift.activation_checkpointing == "full"
    zero = config_of(SWIFT | {"deepspeed": "zero2"}).strategy
    assert isinstance(zero, ZeroConfig) and zero.stage == 2 and not zero.overlap_comm


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (AXOLOTL | {"lora_rr": 1}, r"baseline.lora_rr \(1\) is no key of axolotl 0.21.0; did you mean lora_r\?"),
        (FACTORY | {"lora_rnak": 1}, r"baseline.lora_rnak \(1\) is no key of LLaMA-Factory 0.9.5; did you mean lora_rank\?"),
        (SWIFT | {"train_typ": "x"}, r"baseline.train_typ \('x'\) is no key of ms-swift 4.6.0"),
        (AXOLOTL | {"sequence_len": 32}, r"baseline.sequence_len \(32\), but the workload's sequence_length is 64"),
        (AXOLOTL | {"micro_batch_size": 4}, r"baseline.micro_batch_size × gradient_accumulation_steps × ranks"),
        (AXOLOTL | {"micro_batch_size": "two"}, r"baseline.micro_batch_size \('two'\) must be a number"),
        (AXOLOTL | {"adapter": "lora", "lora_r": 8, "lora_alpha": 16, "lora_target_linear": True}, r"baseline.adapter \(LoRA r=8\), but the workload trains all weights; .*\"adapter\": \{\"rank\": 8"),
        (AXOLOTL | {"adapter": "lora", "lora_r": 0, "lora_alpha": 16, "lora_target_linear": True}, r"baseline.adapter: its rank \(0\)"),
        (AXOLOTL | {"adapter": "lora", "lora_r": 8, "lora_alpha": 16}, r"baseline.adapter: its targets"),
        (AXOLOTL | {"adapter": "qlora"}, r"baseline.adapter \('qlora'\) needs load_in_4bit \(true\) in axolotl"),
        (AXOLOTL | {"adapter": "llama-adapter"}, r"baseline.adapter \('llama-adapter'\) is trained by no trial"),
        (AXOLOTL | {"load_in_4bit": True}, r"baseline.load_in_4bit \(True\) is trained by no trial"),
        (AXOLOTL | QLORA | {"bnb_config_kwargs": {"bnb_4bit_quant_type": "fp4"}}, r"baseline.bnb_config_kwargs.bnb_4bit_quant_type \('fp4'\) .*use nf4"),
        (AXOLOTL | QLORA | {"load_in_8bit": True}, r"baseline.load_in_8bit \(True\) is trained by no trial"),
        (FACTORY | {"finetuning_type": "lora", "quantization_bit": 8}, r"baseline.quantization_bit \(8\) is trained by no trial; use 4"),
        (FACTORY | {"finetuning_type": "lora", "quantization_bit": 4, "quantization_method": "hqq"}, r"baseline.quantization_method \('hqq'\) .*use bnb"),
        (FACTORY | {"quantization_bit": 4}, r"baseline.quantization_bit \(4\) is trained by no trial"),
        ({"tuner_type": "lora", "torch_dtype": "bfloat16", "quant_bits": 4}, r"baseline.quant_bits \(4\) has no effect without quant_method"),
        (AXOLOTL | {"unfrozen_parameters": ["^lm_head"]}, r"baseline.unfrozen_parameters trains a part"),
        (AXOLOTL | {"deepspeed": {"zero_optimization": {"stage": 2}}, "fsdp_config": {}}, r"baseline.deepspeed and baseline.fsdp_config are both set"),
        (AXOLOTL | {"fsdp_version": 1, "fsdp_config": {}}, r"baseline.fsdp_version \(1\) is gone from axolotl 0.21; set it to 2"),
        (AXOLOTL | {"fsdp_config": {}, "dp_replicate_size": 3, "dp_shard_size": 4}, r"dp_replicate × dp_shard \(3 × 4\)"),
        (AXOLOTL | {"dp_replicate_size": "2"}, r"baseline.dp_replicate_size \('2'\) must be a number of ranks"),
        (AXOLOTL | {"fsdp_config": ["x"]}, r"baseline.fsdp_config \(\['x'\]\) must be an object"),
        (AXOLOTL | {"deepspeed": 5}, r"baseline.deepspeed \(5\) must be an object"),
        (AXOLOTL | {"tensor_parallel_size": 2}, r"baseline.tensor_parallel_size \(2\) is not offered"),
        (AXOLOTL | {"optimizer": "paged_adamw_8bit"}, r"baseline.optimizer \('paged_adamw_8bit'\), but the workload trains with AdamW"),
        (AXOLOTL | {"bf16": False}, r"baseline.bf16 \(false\), but the workload's precision"),
        (FACTORY | {"finetuning_type": "oft"}, r"baseline.finetuning_type \('oft'\) is trained by no trial"),
        (FACTORY | {"pure_bf16": True}, r"baseline.pure_bf16 \(true\).*use precision 'bf16-true'"),
        (FACTORY | {"max_grad_norm": 7}, r"baseline.max_grad_norm \(7\), but the workload's max_grad_norm is"),
        (SWIFT | {"deepspeed": "zero9"}, r"baseline.deepspeed \('zero9'\) must be a JSON file, its content, or one of zero0"),
        (SWIFT | {"fsdp": "full_shard"}, r"baseline.fsdp \('full_shard'\) must be a JSON file"),
        ({"tuner_type": "lora", "torch_dtype": "bfloat16"}, r"baseline.tuner_type \(LoRA r=8\), but the workload trains all weights"),
        (SWIFT | {"quant_bits": 4}, r"baseline.quant_bits \(4\) is trained by no trial"),
    ],
)  # fmt: skip
def test_bad_input_names_field_value_and_remedy_in_the_tools_words(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(values)


PACKED: dict[str, Any] = {"kind": "lora", "rank": 8, "alpha": 16.0, "quantization": "nf4"}
FOUR_BIT: dict[str, tuple[dict[str, Any], str]] = {
    "axolotl": (AXOLOTL | QLORA, "bnb_config_kwargs"),
    "llama-factory": (FACTORY | {"finetuning_type": "lora", "quantization_bit": 4}, "double_quantization"),
    "ms-swift": (
        SWIFT | {"tuner_type": "lora", "lora_alpha": 16, "quant_bits": 4, "quant_method": "bnb"},
        "bnb_4bit_use_double_quant",
    ),
}


@pytest.mark.parametrize("tool", FOUR_BIT)
def test_a_file_with_4_bit_weights_is_read_and_compared(tool: str) -> None:
    """Each tool quantises scales unless it is told otherwise."""
    values, key = FOUR_BIT[tool]
    twice = workload(adapter=PACKED | {"double_quantization": True})
    assert config_of(values, twice).micro_batch == 2
    once = {key: {"bnb_4bit_use_double_quant": False} if tool == "axolotl" else False}
    assert config_of(values | once, workload(adapter=PACKED)).micro_batch == 2
    assert not any("quant" in note or "bnb" in note for note in read(values | once, workload(adapter=PACKED)).notes)
    for other in (workload(adapter=PACKED), workload(adapter=PACKED | {"quantization": None})):
        with pytest.raises(ValueError, match=r"QLoRA nf4 double r=8\).*make them equal"):
            read(values, other)


def test_packing_and_grouping_must_agree_with_the_data() -> None:
    lengths = {"lengths": [[8, 10], [32, 4]], "layout": "grouped"}
    with pytest.raises(
        ValueError, match=r"baseline.sample_packing \(true\) packs samples, but .* 'grouped'; use layout 'packed'"
    ):
        read(AXOLOTL | {"sample_packing": True}, workload(data=lengths))
    with pytest.raises(
        ValueError, match=r"batch_flattening \(true\) joins samples as no trial does; .* use sample_packing"
    ):
        read(AXOLOTL | {"batch_flattening": True}, workload(data=lengths))
    with pytest.raises(
        ValueError, match=r"baseline.packing \(true\) joins samples as no trial does; .* use neat_packing"
    ):
        read(FACTORY | {"packing": True}, workload(data=lengths | {"layout": "packed"}))
    with pytest.raises(ValueError, match=r"baseline.packing is absent or false, but .*'packed'; set it to true"):
        read(SWIFT, workload(data=lengths | {"layout": "packed"}))
    with pytest.raises(ValueError, match=r"group_by_length|train_sampling_strategy"):
        read(AXOLOTL, workload(data=lengths))
    assert config_of(AXOLOTL | {"group_by_length": True}, workload(data=lengths)).micro_batch == 2
    assert any("full rows" in note for note in read(AXOLOTL | {"sample_packing": True}).notes)


def test_each_adapter_is_compared_with_every_number() -> None:
    trained = workload(adapter={"rank": 8, "alpha": 16.0, "targets": ["q_proj", "v_proj"]})
    factory = FACTORY | {"finetuning_type": "lora", "lora_target": "q_proj, v_proj"}
    assert config_of(factory, trained).micro_batch == 2
    with_magnitudes = workload(adapter=dict(trained.adapter or {}) | {"dora": True})
    assert config_of(factory | {"use_dora": True}, with_magnitudes).micro_batch == 2
    changes = ({"lora_rank": 4}, {"lora_alpha": 8}, {"lora_target": "q_proj"}, {"use_rslora": True}, {"use_dora": True})
    for change in changes:
        with pytest.raises(ValueError, match=r"baseline.finetuning_type .*make them equal"):
            read(factory | change, trained)
    assert (
        "baseline.lora_dropout is not applied: trials have no dropout"
        in read(factory | {"lora_dropout": 0.1}, trained).notes
    )
    slower = read(factory | {"lora_dropout": 0.1, "use_dora": True}, with_magnitudes).notes
    assert any("with DoRA yours multiplies by each adapted layer's frozen weight once more" in note for note in slower)
    with pytest.raises(ValueError, match=r"baseline.adapter: dora \(true\) with quantization \('nf4'\)"):
        read(AXOLOTL | QLORA | {"peft_use_dora": True}, with_magnitudes)


def test_trls_dora_is_compared_with_the_workload() -> None:
    """Trials of LoRA would be called faster than the DoRA that runs today."""
    trl = {"per_device_train_batch_size": 2, "bf16": True, "use_peft": True}
    magnitudes, plain = workload(adapter="dora"), workload(adapter="lora")
    assert not any("use_dora" in note for note in read(trl | {"use_dora": True}, magnitudes).notes)
    assert not any("use_dora" in note for note in read(trl, plain).notes)
    assert any("use_dora is absent, which means LoRA in TRL" in note for note in read(trl, magnitudes).notes)
    for trained, says in ((plain, r"trains LoRA r=16; set dora to true"), (workload(), "trains all weights")):
        with pytest.raises(ValueError, match=rf"baseline.use_dora \(true\), but the workload {says}"):
            read(trl | {"use_dora": True}, trained)
    with pytest.raises(ValueError, match=r"baseline.use_dora \(false\), but the workload's adapter has dora \(true\)"):
        read(trl | {"use_dora": False}, magnitudes)


@pytest.mark.parametrize(("tool", "name"), NAMES.items())
def test_what_changes_is_a_diff_of_the_users_own_file(tool: Any, name: str) -> None:
    study = study_of("llama-tiny", "bf16-mixed", GPUS, global_batch=32)
    today, best = contender_of(CONFIGS["ddp"]), contender_of(CONFIGS["fsdp2"])
    values = yaml.safe_load(export(study, today, tool).files[name])
    study = study.model_copy(update={"spec": study.spec.model_copy(update={"baseline": values})})
    answer = user_file.diff_of(study, today, best)
    assert answer is not None
    assert "micro_batch_size: 1" in answer.diff or "train_batch_size: 1" in answer.diff


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("base_model: !!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
        ("base_model: x\nsequence_len: [" + "[" * 3000, "cannot be read|correct"),
        ("base_model: x\n#" + "a" * 1_000_001, "a baseline file may have 1,000,000"),
        ("- base_model\n", "holds a list"),
        ("base_model: &a [x, x]\n" + "".join(f"k{i}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)), "entries with its aliases"),
    ],
    ids=["tag", "nested", "long", "list", "aliases"],
)  # fmt: skip
def test_a_hostile_file_is_rejected_before_it_is_interpreted(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "axolotl.yaml").write_text(text)
    with pytest.raises(InputError, match=says):
        study_file.validate_study({"model": "llama-tiny", "baseline": "axolotl.yaml"}, tmp_path)


@pytest.mark.parametrize("tool", NAMES)
@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
@pytest.mark.parametrize("twice", [False, True])
def test_an_exported_file_with_4_bit_weights_is_read_back(tool: Any, name: str, twice: bool) -> None:
    adapter = PACKED | {"double_quantization": twice}
    study = with_adapter(study_of("llama-tiny", "bf16-mixed", GPUS, global_batch=32), adapter)
    values = yaml.safe_load(export(study, contender_of(CONFIGS[name]), tool).files[NAMES[tool]])
    values = {key: value for key, value in values.items() if key not in ("fsdp", "fsdp_config", "fsdp_version")}
    resolved = resolve_with_notes(values, study.spec.workload, GPUS)
    assert resolved.config is not None and resolved.config.micro_batch == CONFIGS[name].micro_batch
    with pytest.raises(ValueError, match="make them equal"):
        other = {"adapter": adapter | {"double_quantization": not twice}}
        resolve_with_notes(values, Workload.model_validate({**dict(study.spec.workload), **other}), GPUS)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"load_in_4bit": True, "use_bnb_nested_quant": True}, r"use_bnb_nested_quant \(true\), but .*\(false\); make them equal"),
        ({"load_in_4bit": False}, r"load_in_4bit \(false\), but the workload's adapter has quantization \('nf4'\)"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, r"bnb_4bit_quant_type \('fp4'\) is trained by no trial; use nf4"),
        ({"load_in_8bit": True}, r"load_in_8bit \(true\) is trained by no trial"),
    ],
)  # fmt: skip
def test_trls_4_bit_weights_are_compared_with_the_workload(values: dict[str, Any], says: str) -> None:
    """Under DDP; `bnb_4bit_quant_storage` changes no value."""
    trl = {"per_device_train_batch_size": 2, "bf16": True, "bnb_4bit_quant_storage": "bfloat16"}
    packed = read(trl | {"load_in_4bit": True}, workload(adapter=PACKED))
    assert packed.config is not None and packed.config.micro_batch == 2
    assert any("TRL updates the adapter in bfloat16 without float32 masters" in note for note in packed.notes)
    with pytest.raises(ValueError, match=says):
        read(trl | values, workload(adapter=PACKED))
    with pytest.raises(ValueError, match=r"load_in_4bit \(true\), but the workload's base weights are not quantised"):
        read(trl | {"load_in_4bit": True})


def test_tiles_of_axolotl_are_noted_and_not_measured() -> None:
    plain = read(AXOLOTL).notes
    tiled = read(AXOLOTL | {"tiled_mlp": True, "tiled_mlp_num_shards": 4}).notes
    (note,) = [note for note in tiled if note not in plain]
    assert note.startswith("baseline.tiled_mlp is not applied: measured with whole MLPs") and "(mlp_slices)" in note
    assert read(AXOLOTL | {"tiled_mlp": False}).notes == plain


EVERY_PRODUCT = ["attention", "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_grouped_mm"]


@pytest.mark.parametrize(
    ("stated", "changes", "keeps", "noted"),
    [
        (True, {}, "attention", ""),
        ({"save": ["attention"]}, {}, "attention", ""),
        ({"save": EVERY_PRODUCT}, {}, "products", ""),
        ({"save": ["aten::mm"]}, {}, "products", "(save ['aten::mm']) is measured with selective_keeps ('products')"),
        (True, {"attention": "eager"}, "products", "because attention ('eager') is not one of torch's kernels"),
    ],
    ids=["on", "attention", "products", "some products", "eager"],
)
def test_axolotls_selective_checkpointing_keeps_what_its_list_names(
    stated: Any, changes: dict[str, Any], keeps: str, noted: str
) -> None:
    plain = AXOLOTL | {"gradient_checkpointing": True}
    baseline = read(plain | {"selective_checkpointing": stated}, workload(**changes))
    assert baseline.config is not None
    assert (baseline.config.activation_checkpointing, baseline.config.selective_keeps) == ("selective", keeps)
    notes = [note for note in baseline.notes if "selective" in note]
    assert len(notes) == bool(noted) and all(noted in note for note in notes)


@pytest.mark.parametrize("keeps", ["products", "attention"])
def test_an_exported_choice_of_kept_results_is_read_back(keeps: str) -> None:
    config = CONFIGS["fsdp2"].model_copy(update={"activation_checkpointing": "selective", "selective_keeps": keeps})
    study = study_of("llama-tiny", "bf16-mixed", GPUS, global_batch=32)
    text = export(study, contender_of(config), "axolotl").files[NAMES["axolotl"]]
    assert config_of(yaml.safe_load(text), study.spec.workload).selective_keeps == keeps
