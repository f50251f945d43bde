"""A user's DeepSpeed JSON as a baseline: read as DeepSpeed reads it, rejected where it trains something else."""

import re
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.baseline import resolve, resolve_with_notes

BF16 = Workload(sequence_length=64, global_batch=16)
FP32 = Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["fp32"])
TWO_RANKS = Cluster(device="cpu", gpus_per_node=2, memory_gib=2, host_memory_gib=8)
BF16_ON = {"bf16": {"enabled": True}}
STAGE_2 = {"zero_optimization": {"stage": 2}}


def zero(inputs: dict[str, Any], workload: Workload = BF16) -> ZeroConfig:
    config = resolve(inputs, workload, TWO_RANKS)
    assert config is not None and isinstance(config.strategy, ZeroConfig)
    return config.strategy


def test_no_baseline_stays_none() -> None:
    assert resolve(None, BF16, TWO_RANKS) is None


def test_our_own_words_as_json_are_a_configuration() -> None:
    inputs = {"strategy": {"kind": "ddp", "bucket_cap_mb": 50}, "micro_batch": 4}
    assert resolve(inputs, BF16, TWO_RANKS) == TrialConfig(strategy=DdpConfig(bucket_cap_mb=50), micro_batch=4)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (
            {"strategy": {"kind": "fsdp2", "dp_shardd": 2}},
            r"baseline.strategy.dp_shardd (2) is not a field here; did you mean dp_shard?",
        ),
        (
            {"kind": "ddp", "bucket_cap": 25},
            "baseline.strategy.bucket_cap (25) is not a field here; did you mean bucket_cap_mb?",
        ),
        ({"strategy": {"kind": "ddp"}, "microbatch": 4}, "did you mean micro_batch?"),
        ({"strategy": {"kind": "fsdp3"}}, "baseline.strategy.kind ('fsdp3') must be one of 'ddp'"),
        ({"strategy": {"bucket_cap_mb": 25}}, "baseline.strategy.kind is missing; add it"),
        ({"strategy": {"kind": "fsdp2"}}, "baseline.strategy.dp_shard is missing; add it"),
        ({"strategy": "ddp"}, "baseline.strategy ('ddp') must be an object"),
        ({"stage": 2}, "baseline.stage is no key of a baseline; give a configuration such as"),
    ],
)
def test_a_mistake_in_our_own_words_is_named_with_its_remedy(inputs: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        resolve(inputs, BF16, TWO_RANKS)


def test_auto_values_are_left_to_the_workload() -> None:
    autos = {"train_batch_size": "auto", "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "fp16": "auto"}
    config, notes = resolve_with_notes({**autos, **STAGE_2}, BF16, TWO_RANKS)
    assert config == TrialConfig(strategy=ZeroConfig(stage=2, overlap_comm=False), micro_batch=8)
    assert any("Trainer's default of 8" in note for note in notes)


AUTO_3 = {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}
AUTO_3 |= {"stage3_param_persistence_threshold": "auto"}
MODEL = ModelSpec(name="m", config={"model_type": "llama", "hidden_size": 64})


@pytest.mark.parametrize("around", [{}, {"tool": "accelerate"}])
def test_auto_buckets_are_what_the_trainer_and_accelerate_make_of_them(around: dict[str, str]) -> None:
    """transformers 5.17, `HfTrainerDeepSpeedConfig.trainer_config_finalize`."""
    resolved = resolve_with_notes({"zero_optimization": AUTO_3, "micro_batch": 2, **around}, BF16, TWO_RANKS, MODEL)
    assert resolved.config is not None and isinstance(strategy := resolved.config.strategy, ZeroConfig)
    assert resolved.config.micro_batch == 2
    assert strategy.reduce_bucket_size == 64 * 64
    assert strategy.stage3_prefetch_bucket_size == int(0.9 * 64 * 64)
    assert strategy.stage3_param_persistence_threshold == 640
    reader = "Accelerate" if around else "the Hugging Face Trainer"
    assert any(f"is read as {reader} reads it, by the hidden size of 64" in note for note in resolved.notes)


def test_the_user_names_another_tool_for_auto() -> None:
    inputs = {"zero_optimization": AUTO_3, "tool": "deepspeed"}
    resolved = resolve_with_notes(inputs, BF16, TWO_RANKS, MODEL)
    assert resolved.config is not None and resolved.config.strategy == ZeroConfig(stage=3, overlap_comm=True)
    assert any("DeepSpeed's own default" in note for note in resolved.notes)
    with pytest.raises(
        ValueError, match=r"baseline.tool \('lightning'\) must be one of trainer, accelerate, deepspeed"
    ):
        resolve(inputs | {"tool": "lightning"}, BF16, TWO_RANKS)
    with pytest.raises(ValueError, match="follows the hidden size, which the model's config does not say"):
        resolve({"zero_optimization": AUTO_3}, BF16, TWO_RANKS)


def test_a_misspelt_section_is_named_as_such() -> None:
    for key, intended in (("zero_optimisation", "zero_optimization"), ("train_batchsize", "train_batch_size")):
        with pytest.raises(
            ValueError, match=rf"baseline.{key} is no key of a DeepSpeed JSON; did you mean {intended}\?"
        ):
            resolve({key: {"stage": 2}}, BF16, TWO_RANKS)


@pytest.mark.parametrize(("stage", "overlap"), [(1, False), (2, False), (3, True)])
def test_an_absent_overlap_comm_is_what_deepspeed_makes_of_it(stage: int, overlap: bool) -> None:
    assert zero({"zero_optimization": {"stage": stage}}).overlap_comm is overlap


def test_scientific_notation_old_names_and_offload_are_understood() -> None:
    section = {"stage": 3, "reduce_bucket_size": 2e8, "prefetch_bucket_size": 7, "cpu_offload": True}
    strategy = zero({"zero_optimization": section | {"offload_param": {"device": "none"}}})
    assert (strategy.reduce_bucket_size, strategy.stage3_prefetch_bucket_size) == (200_000_000, 7)
    assert strategy.offload_optimizer is not None and strategy.offload_optimizer.device == "cpu"
    assert strategy.offload_param is None


@pytest.mark.parametrize(
    ("sizes", "micro_batch"),
    [
        ({"train_batch_size": 16}, 8),
        ({"train_micro_batch_size_per_gpu": 4}, 4),
        ({"gradient_accumulation_steps": 4}, 2),
        ({"train_batch_size": 16, "gradient_accumulation_steps": 8, "train_micro_batch_size_per_gpu": 1}, 1),
    ],
)
def test_batch_sizes_follow_deepspeeds_rules(sizes: dict[str, int], micro_batch: int) -> None:
    config = resolve({**sizes, **STAGE_2}, BF16, TWO_RANKS)
    assert config is not None and config.micro_batch == micro_batch


@pytest.mark.parametrize(
    ("inputs", "theirs", "ours"),
    [
        ({"bf16": {"enabled": False}}, "bf16.enabled (false)", "bf16-mixed"),
        ({"fp16": {"enabled": True}}, "fp16.enabled (true)", "bf16-mixed"),
        ({"train_batch_size": 32}, "train_batch_size (32)", "global_batch is 16"),
        ({"train_micro_batch_size_per_gpu": 3}, "3", "global_batch (16)"),
        ({"gradient_clipping": 0.5}, "gradient_clipping (0.5)", "max_grad_norm is 1.0"),
        ({"optimizer": {"type": "Lamb"}}, "optimizer.type ('Lamb')", "AdamW"),
        ({"optimizer": {"params": {"lr": 1e-5}}}, "params.lr (1e-05)", "optimizer.lr is 0.0003"),
        ({"optimizer": {"params": {"betas": [0.9, 0.999]}}}, "betas[1] (0.999)", "beta2 is 0.95"),
        ({"communication_data_type": "bf16"}, "communication_data_type ('bf16')", "fp32"),
        ({"data_types": {"grad_accum_dtype": "bf16"}}, "grad_accum_dtype ('bf16')", "fp32"),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, "bf16_master", "masters in float32"),
        ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "zero_quantized_weights", "precision"),
        ({"zero_optimization": {"stage": "two"}}, "stage ('two')", "number"),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": 0}}, "reduce_bucket_size (0)", "at least 1"),
        ({"strategy": {"kind": "ddp", "bucket": 3}}, "baseline.strategy", "bucket"),
        ({"strategy": {"kind": "fsdp2", "dp_shard": 4}}, "(1 × 4)", "number of ranks (2)"),
    ],
)
def test_a_contradiction_names_both_sides(inputs: dict[str, Any], theirs: str, ours: str) -> None:
    with pytest.raises(ValueError) as rejected:
        resolve({**STAGE_2, **inputs} if "strategy" not in inputs else inputs, BF16, TWO_RANKS)
    assert theirs in str(rejected.value) and ours in str(rejected.value)


def test_stage_0_is_ddp_where_it_trains_the_same_and_rejected_where_not() -> None:
    config, notes = resolve_with_notes({"train_micro_batch_size_per_gpu": 2}, FP32, TWO_RANKS)
    assert config == TrialConfig(strategy=DdpConfig(), micro_batch=2)
    assert any("DDP" in note for note in notes)
    with pytest.raises(ValueError, match="trains something else"):
        resolve({**BF16_ON, "zero_optimization": {"stage": 0}}, BF16, TWO_RANKS)


def precision_switches(name: str) -> dict[str, Any]:
    """Section of a DeepSpeed JSON that states a precision."""
    states = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    autocast = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
    sections: dict[str, dict[str, Any]] = {
        "bf16-mixed": BF16_ON,
        "bf16-true": {"bf16": {"enabled": True, **states}},
        "bf16-autocast": {"torch_autocast": autocast},
        "fp16-mixed": {"fp16": {"enabled": True}},
        "fp32": {},
    }
    return sections[name]


def test_the_reference_names_the_precisions_in_which_stage_0_is_measured_and_rejected() -> None:
    measured, rejected = [], []
    for name, precision in PRECISIONS.items():
        workload = Workload(sequence_length=64, global_batch=16, precision=precision)
        try:
            _, notes = resolve_with_notes(precision_switches(name), workload, TWO_RANKS)
        except ValueError as error:
            assert "trains something else" in str(error), name
            rejected.append(name)
        else:
            assert any(f"the same training in {name} (" in note for note in notes)
            measured.append(name)
    page = (Path(__file__).parents[4] / "docs/reference/baseline-files.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| stage 0"))
    named = [re.findall(r"`([\w-]+)`", part.partition("under")[2]) for part in row.split(";")]
    assert [set(names) for names in named] == [set(measured), set(rejected)]


def test_keys_without_effect_are_listed_and_logging_is_not() -> None:
    section = {"stage": 2, "offload_param": {"device": "cpu"}, "memory_efficient_linear": False}
    inputs = {**BF16_ON, "gradient_clipping": 1, "train_batch_size": 16, "steps_per_print": 10, "colour": "red"}
    _, notes = resolve_with_notes(
        {**inputs, "zero_optimization": section, "scheduler": {"type": "WarmupLR"}}, BF16, TWO_RANKS
    )
    text = "\n".join(notes)
    for name in ("offload_param has no effect", "memory_efficient_linear", "baseline.colour", "baseline.scheduler"):
        assert name in text
    assert "steps_per_print" not in text and len(notes) == 4
