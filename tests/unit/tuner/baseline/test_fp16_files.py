"""Files that switch float16 on: read as the workload's fp16-mixed, and contradictions named."""

from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, ZeroConfig
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.baseline import implied_precision, resolve_with_notes

FLOAT16 = Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["fp16-mixed"])
TWO_RANKS = Cluster(device="cpu", gpus_per_node=2, memory_gib=2, host_memory_gib=8)
ACCELERATE: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "mixed_precision": "fp16"}
TRAINER: dict[str, Any] = {"output_dir": "out", "per_device_train_batch_size": 8, "fp16": True, "max_grad_norm": 1}
ZERO: dict[str, Any] = {"zero_optimization": {"stage": 2}, "fp16": {"enabled": True}}
FILES: dict[str, tuple[dict[str, Any], type]] = {
    "accelerate ddp": (ACCELERATE | {"distributed_type": "MULTI_GPU"}, DdpConfig),
    "accelerate fsdp2": (ACCELERATE | {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}}, Fsdp2Config),
    "accelerate deepspeed": (
        ACCELERATE | {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2}},
        ZeroConfig,
    ),
    "trainer ddp": (TRAINER, DdpConfig),
    "trainer deepspeed": (TRAINER | {"deepspeed": ZERO}, ZeroConfig),
    "deepspeed": (ZERO, ZeroConfig),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_in_float16_is_a_baseline_of_fp16_mixed_and_implies_it(name: str) -> None:
    values, kind = FILES[name]
    resolved = resolve_with_notes(values, FLOAT16, TWO_RANKS)
    assert resolved.config is not None and isinstance(resolved.config.strategy, kind)
    implied = implied_precision(values)
    assert implied is not None and implied[0] == PRECISIONS["fp16-mixed"]
    with pytest.raises(ValueError, match=r"\(true\), but the workload's precision \('fp32'\).*'fp16-mixed'"):
        resolve_with_notes(
            values, Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["fp32"]), TWO_RANKS
        )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (TRAINER | {"fp16": False}, r"fp16 \(false\), but the workload's precision \('fp16-mixed'\).*set it to true"),
        (ACCELERATE | {"mixed_precision": "no"}, r"mixed_precision fp16 \(false\), but"),
        (TRAINER | {"bf16": True}, r"bf16 \(true\), but the workload's precision \('fp16-mixed'\) computes in float16"),
        (ZERO | {"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}}, r"keep float32 masters; set it"),
        (
            ZERO | {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
            r"stage 2.*or use stage 3",
        ),
        (ZERO | {"zero_optimization": {"stage": 0}}, r"stage \(0\) under precision \('fp16-mixed'\)"),
    ],
)
def test_contradictions_to_float16_are_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        resolve_with_notes(values, FLOAT16, TWO_RANKS)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("initial_scale_power", "abc", r"\('abc'\) must be a number"),
        ("initial_scale_power", -3, r"\(-3\) must be from 0 to 127; correct it"),
        ("initial_scale_power", 128, r"\(128\) must be from 0 to 127; correct it"),
        ("loss_scale", -1, r"\(-1\) must be at least 0; correct it"),
        ("min_loss_scale", 0, r"\(0\) must be at least 1; correct it"),
        ("loss_scale_window", 0, r"\(0\) must be at least 1; correct it"),
        ("loss_scale_window", 1.5, r"\(1.5\) must be a whole number"),
        ("hysteresis", -1, r"\(-1\) must be at least 0; correct it"),
        ("consecutive_hysteresis", 3, r"\(3\) must be true or false"),
    ],
)
def test_values_that_deepspeed_would_not_take_are_named(name: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=rf"baseline.fp16.{name} {words}"):
        resolve_with_notes(ZERO | {"fp16": {"enabled": True, name: value}}, FLOAT16, TWO_RANKS)


def test_a_switch_written_as_text_is_read_as_one() -> None:
    implied = implied_precision(TRAINER | {"fp16": "true"})
    assert implied is not None and implied[0] == PRECISIONS["fp16-mixed"]
    assert implied_precision(TRAINER | {"fp16": "yes"}) is None
    with pytest.raises(ValueError, match=r"baseline.fp16 \('yes'\) must be true or false"):
        resolve_with_notes(TRAINER | {"fp16": "yes"}, FLOAT16, TWO_RANKS)


def test_what_is_measured_otherwise_is_noted() -> None:
    def notes(values: dict[str, Any]) -> str:
        return " | ".join(resolve_with_notes(values, FLOAT16, TWO_RANKS).notes)

    assert "the Trainer's fp16 under DDP is autocast" in notes(TRAINER)
    assert "Accelerate's fp16 reduces gradients in float16; measured with" in notes(FILES["accelerate fsdp2"][0])
    assert "fp16.enabled is absent or auto; measured as true" in notes({"zero_optimization": {"stage": 2}})
    assert "loss_scale (128) is fixed; measured with a dynamic scale" in notes(
        ZERO | {"fp16": {"enabled": True, "loss_scale": 128}}
    )
    assert "DeepSpeed's fp16 reduces gradients in float16; measured with" in notes(ZERO)
    assert "reduces gradients in float16" not in notes(ZERO | {"communication_data_type": "fp32"})
    assert "initial_scale_power (12) is not applied: the loss scale of trials begins at 65536" in notes(
        ZERO | {"fp16": {"enabled": True, "initial_scale_power": 12}}
    )
    assert "fp16.bogus is not applied" in notes(ZERO | {"fp16": {"enabled": True, "bogus": 3}})
    exported = {"enabled": True, "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 2000, "hysteresis": 1}
    assert "is not applied" not in notes(ZERO | {"fp16": exported})
