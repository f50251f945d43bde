"""Files of fine-tuning tools as baselines: whose file it is, what it trains, and in which precision."""

from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Fsdp2Config
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.baseline import implied_precision, resolve_with_notes, tools

GPUS = Cluster(gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
AXOLOTL: dict[str, Any] = {"base_model": "x/y", "sequence_len": 64, "micro_batch_size": 2, "bf16": True}
FACTORY: dict[str, Any] = {"finetuning_type": "full", "cutoff_len": 64, "per_device_train_batch_size": 2, "bf16": True}
SWIFT: dict[str, Any] = {"tuner_type": "full", "max_length": 64, "per_device_train_batch_size": 2}
SWIFT |= {"torch_dtype": "bfloat16"}
TRAINER: dict[str, Any] = {"per_device_train_batch_size": 2, "output_dir": "out", "bf16": True}
LORA = {"adapter": "lora", "lora_r": 8, "lora_alpha": 16, "lora_target_linear": True}


def workload(precision: str = "bf16-mixed", **changes: Any) -> Workload:
    base = Workload(sequence_length=64, global_batch=16, precision=PRECISIONS[precision])
    return Workload.model_validate({**dict(base), **changes})


def notes_of(values: dict[str, Any], trained: Workload | None = None) -> str:
    return "\n".join(resolve_with_notes(values, trained or workload(), GPUS).notes)


@pytest.mark.parametrize(
    "own",
    [
        {"torch_dtype": "bfloat16", "model_name_or_path": "x/y"},
        {"torch_dtype": "bfloat16", "attn_implementation": "sdpa", "use_peft": False, "max_length": 64},
        {"dataset_dir": "data"},
        {"target_modules": ["q_proj"]},
        {"attn_impl": "sdpa"},
        {"base_model": "x/y"},
        {"sequence_len": 64},
    ],
)
def test_a_key_that_scripts_have_too_makes_no_file_a_tools(own: dict[str, Any]) -> None:
    assert tools.recognised(TRAINER | own) is None
    assert f"baseline.{next(iter(own))} is not applied" in notes_of(TRAINER | own)


@pytest.mark.parametrize(
    "values",
    [
        AXOLOTL | {"attn_implementation": "flash_attention_2"},
        AXOLOTL | {"flash_attention": True, "sdp_attention": False},
        FACTORY | {"flash_attn": "fa2"},
        SWIFT | {"attn_impl": "flash_attn"},
    ],
    ids=["axolotl", "axolotl's older key", "llama-factory", "ms-swift"],
)
def test_another_attention_than_the_workloads_is_noted_with_the_remedy(values: dict[str, Any]) -> None:
    said = "is not applied; measured with the workload's attention ('sdpa'): state attention 'flash_attention_2' in"
    assert said in notes_of(values)
    assert "attention" not in notes_of(values, workload(attention="flash_attention_2"))
    unnamed = {
        key: value
        for key, value in values.items()
        if value not in ("flash_attention_2", "fa2", "flash_attn") and key != "flash_attention"
    }
    assert "attention" not in notes_of(unnamed) and "attention" not in notes_of(FACTORY | {"flash_attn": "auto"})
    assert (
        "('fa3') is not applied; measured with the workload's attention ('sdpa')\n"
        in f"{notes_of(FACTORY | {'flash_attn': 'fa3'})}\n"
    )


def test_a_file_of_llama_factory_that_wraps_no_block_is_told_that_trials_do() -> None:
    """transformers 5.6, which it pins, makes one unit of the whole model without auto_wrap."""
    said = "baseline.fsdp ('full_shard') has no auto_wrap, which means the whole model as one unit in LLaMA-Factory"
    assert said in notes_of(FACTORY | {"fsdp": "full_shard"})
    assert "auto_wrap" not in notes_of(FACTORY | {"fsdp": "full_shard auto_wrap"})


def test_axolotls_own_lora_kernels_are_noted_where_they_run_by_default() -> None:
    trained = workload(adapter={"rank": 8, "alpha": 16})
    said = "baseline.lora_mlp_kernel is absent, which means axolotl's own LoRA kernels; measured without them"
    assert said in notes_of(AXOLOTL | LORA, trained)
    for own in ({"lora_qkv_kernel": False}, {"trust_remote_code": True}):
        assert said not in notes_of(AXOLOTL | LORA | own, trained)
    assert said not in notes_of(AXOLOTL)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (AXOLOTL | LORA | {"lora_modules_to_save": ["lm_head"]}, r"baseline.lora_modules_to_save \(\['lm_head'\]\) changes what is trained"),
        (AXOLOTL | LORA | {"peft_layers_to_transform": [0]}, "baseline.peft_layers_to_transform"),
        (AXOLOTL | {"rl": "dpo"}, r"baseline.rl \('dpo'\) changes"),
        (AXOLOTL | {"relora": True}, "baseline.relora"),
        (AXOLOTL | {"plugins": ["axolotl.integrations.spectrum.SpectrumPlugin"]}, r"baseline.plugins \('axolotl.integrations.spectrum"),
        (FACTORY | {"stage": "dpo"}, r"baseline.stage \('dpo'\) is trained by no trial; use sft"),
        (FACTORY | {"stage": "ppo"}, r"baseline.stage \('ppo'\)"),
        (FACTORY | {"additional_target": "lm_head"}, "baseline.additional_target"),
        (FACTORY | {"use_galore": True}, "baseline.use_galore"),
        (AXOLOTL | {"use_dft": True}, r"baseline.use_dft \(True\) changes what is trained"),
        (AXOLOTL | {"use_eaft": True}, "baseline.use_eaft"),
        (FACTORY | {"use_dft_loss": True}, "baseline.use_dft_loss"),
        (FACTORY | {"use_asft_loss": True}, "baseline.use_asft_loss"),
        (FACTORY | {"use_eaft_loss": True}, "baseline.use_eaft_loss"),
        (SWIFT | {"enable_dft_loss": True}, "baseline.enable_dft_loss"),
        (FACTORY | {"use_badam": True}, "baseline.use_badam"),
        (SWIFT | {"modules_to_save": ["lm_head"]}, "baseline.modules_to_save"),
        (SWIFT | {"lisa_activated_layers": 2}, "baseline.lisa_activated_layers"),
        (SWIFT | {"trainable_parameters_regex": "lm_head"}, "baseline.trainable_parameters_regex trains a part"),
        (SWIFT | {"optimizer": "galore"}, r"baseline.optimizer \('galore'\), but the workload trains with AdamW"),
        (SWIFT | {"task_type": "seq_cls"}, r"baseline.task_type \('seq_cls'\)"),
        (SWIFT | {"loss_type": "infonce"}, r"baseline.loss_type \('infonce'\) changes what is trained, .*; use cross_entropy"),
        (SWIFT | {"torch_dtype": "float32"}, r"baseline.torch_dtype \('float32'\) means fp16 in ms-swift"),
        (SWIFT | {"torch_dtype": "float32", "fp16": False}, r"baseline.bf16 \(by torch_dtype float32\) \(false\), but"),
        (SWIFT | {"torch_dtype": "float16"}, r"baseline.torch_dtype \('float16'\) is no dtype"),
        (AXOLOTL | {"float16": True, "bf16": "auto"}, r"baseline.float16 \(true\), but"),
        (AXOLOTL | {"dp_shard_size": 8}, r"baseline.dp_shard_size \(8\) needs fsdp_config"),
        (AXOLOTL | {"liger_rope": True}, "baseline.liger_rope .*belongs to a plugin"),
        (AXOLOTL | {"plugins": ["x.Y"], "lora_rr": 8}, "did you mean lora_r"),
        (AXOLOTL | {"fsdp_config": {"cpu_offload_pin_memory": "maybe"}}, r"fsdp_config.cpu_offload_pin_memory \('maybe'\) must be true or false"),
    ],
)  # fmt: skip
def test_a_key_that_changes_what_is_trained_or_means_nothing_is_rejected_by_name(
    values: dict[str, Any], says: str
) -> None:
    trained = workload(adapter={"rank": 8, "alpha": 16.0}) if "adapter" in values else workload()
    with pytest.raises(ValueError, match=says):
        notes_of(values, trained)


def test_the_same_keys_switched_off_are_accepted_without_a_note() -> None:
    off: dict[str, Any] = {"rl": None, "relora": False, "lora_modules_to_save": [], "lora_mlp_kernel": False}
    off["use_dft"] = False
    assert not [key for key in off if key in notes_of(AXOLOTL | off)]
    assert "loss_type" not in notes_of(SWIFT | {"loss_type": "cross_entropy"})
    assert "additional_target" not in notes_of(
        FACTORY | {"stage": "sft", "use_galore": "false", "additional_target": None}
    )


def test_keys_of_plugins_are_noted_where_plugins_are_named() -> None:
    liger = {"plugins": ["axolotl.integrations.liger.LigerPlugin"], "liger_rope": True, "cut_cross_entropy": True}
    notes = notes_of(AXOLOTL | liger)
    assert (
        "baseline.plugins is not applied" in notes
        and "baseline.liger_rope is not applied" in notes
        and "baseline.cut_cross_entropy is not applied: trials load no plugin of axolotl; measured with the" in notes
    )
    assert "chunked" not in notes_of(AXOLOTL | liger | {"cut_cross_entropy": False})


@pytest.mark.parametrize(
    ("values", "key"), [(FACTORY, "enable_liger_kernel"), (FACTORY, "use_liger_kernel"), (SWIFT, "use_liger_kernel")]
)
def test_ligers_kernels_are_noted_with_the_knob_that_saves_their_memory(values: dict[str, Any], key: str) -> None:
    said = f"baseline.{key} (true) is not applied: trials have none of its kernels; measured with the logits of a whole"
    assert said in notes_of(values | {key: True}) and "liger" not in notes_of(values | {key: False})


def test_pre_training_of_llama_factory_packs_by_default() -> None:
    assert "baseline.packing (by stage pt)" in notes_of(FACTORY | {"stage": "pt"})


def test_replication_without_fsdp_is_noted() -> None:
    assert "baseline.dp_replicate_size (2) has no effect without fsdp_config" in notes_of(
        AXOLOTL | {"dp_replicate_size": 2}
    )


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (AXOLOTL, "bf16-true"),
        (AXOLOTL | {"bf16": "full"}, "bf16-true"),
        (AXOLOTL | LORA, "bf16-mixed"),
        (AXOLOTL | {"bf16": False}, None),
        (AXOLOTL | {"fsdp_config": {}}, None),
        (SWIFT, "bf16-true"),
        (SWIFT | {"bf16": False}, "bf16-true"),
        ({"tuner_type": "lora", "torch_dtype": "bfloat16"}, "bf16-mixed"),
        (SWIFT | {"torch_dtype": "float32", "bf16": True, "fp16": False}, "bf16-autocast"),
        (FACTORY, "bf16-autocast"),
        (FACTORY | {"bf16": False, "pure_bf16": True}, "bf16-true"),
    ],
)
def test_a_file_means_the_precision_in_which_its_tool_trains_under_ddp(
    values: dict[str, Any], name: str | None
) -> None:
    implied = implied_precision(values)
    assert (None if implied is None else implied[0].name) == name


@pytest.mark.parametrize("values", [AXOLOTL, SWIFT], ids=["axolotl", "ms-swift"])
def test_masters_that_the_tool_does_not_have_are_noted_in_its_own_name(values: dict[str, Any]) -> None:
    notes = notes_of(values)
    assert (
        "loads and updates bfloat16 weights; measured in the workload's precision (bf16-mixed): state bf16-true"
        in notes
    )
    assert "Trainer" not in notes
    assert "masters" not in notes_of(values, workload("bf16-true"))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            SWIFT | {"torch_dtype": "float32", "bf16": True, "fp16": False},
            r"baseline.torch_dtype \(float32\): ms-swift keeps float32",
        ),
        (FACTORY, r"baseline.pure_bf16 is absent: LLaMA-Factory keeps float32 states.*set it to true"),
        (AXOLOTL | {"bf16": False}, r"baseline.bf16 \(false\), but the workload's precision \('bf16-true'\)"),
    ],
)
def test_float32_states_contradict_bf16_true(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        notes_of(values, workload("bf16-true"))


def test_switches_written_as_text_are_read() -> None:
    section = {"offload_params": True, "cpu_offload_pin_memory": "false"}
    strategy = resolve_with_notes(AXOLOTL | {"fsdp_config": section}, workload(), GPUS).config.strategy  # type: ignore[union-attr]
    assert isinstance(strategy, Fsdp2Config) and strategy.pin_memory is False
    trained = workload(adapter={"rank": 8, "alpha": 16.0})
    assert notes_of(AXOLOTL | LORA | {"peft_use_rslora": "false"}, trained)
    assert notes_of(FACTORY | {"finetuning_type": "lora", "use_rslora": "false"}, trained)


@pytest.mark.parametrize(
    ("values", "trained", "says"),
    [
        (AXOLOTL, {"data": {"lengths": [[8, 10], [32, 4]], "layout": "grouped"}}, "baseline.group_by_length is absent, which means no grouping"),
        (FACTORY, {"data": {"lengths": [[8, 10], [32, 4]], "layout": "grouped"}}, "baseline.train_sampling_strategy is absent"),
        ({"cutoff_len": 64, "per_device_train_batch_size": 2}, {}, r"baseline.finetuning_type is absent, which means LoRA r=8 in LLaMA-Factory"),
        (AXOLOTL, {"adapter": {"rank": 8}}, "baseline.adapter is absent, which means all weights in axolotl"),
    ],
)  # fmt: skip
def test_an_error_says_that_its_key_is_absent(values: dict[str, Any], trained: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        notes_of(values, workload(**trained))


def test_an_absent_length_or_optimizer_is_noted_with_the_tools_default() -> None:
    bare = {key: value for key, value in AXOLOTL.items() if key != "sequence_len"}
    assert "baseline.sequence_len is absent, which means 512 in axolotl; measured with" in notes_of(bare)
    assert "baseline.max_length is absent, which means the model's own limit" in notes_of(
        {key: value for key, value in SWIFT.items() if key != "max_length"}
    )
    eight = workload(optimizer={"kind": "adamw-8bit"})
    assert "baseline.optimizer is absent, which means AdamW in axolotl; measured with the workload's 8-bit" in notes_of(
        AXOLOTL, eight
    )
    assert "the Trainer" not in notes_of(AXOLOTL, eight)
