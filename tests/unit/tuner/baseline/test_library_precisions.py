"""Precisions of files of Accelerate and transformers: which one they mean, and which they contradict."""

import re
from typing import Any

import pytest

from shardtune.api_schemas.strategies import DdpConfig
from shardtune.api_schemas.training.workload import PRECISIONS
from shardtune.tuner.baseline import implied_precision
from tests.unit.tuner.baseline.library_files import (
    ACCELERATE,
    AUTOCAST,
    BF16,
    FP32,
    FSDP,
    TRAINER,
    TRUE,
    read,
    strategy,
)


@pytest.mark.parametrize(
    ("inputs", "owner"),
    [
        (TRAINER, "the Trainer under DDP"),
        (ACCELERATE | {"distributed_type": "MULTI_GPU"}, "Accelerate under DDP"),
        (ACCELERATE, "Accelerate under DDP"),
        ({"zero_optimization": {"stage": 2}, "torch_autocast": {"enabled": True}}, "DeepSpeed by torch_autocast"),
        (TRAINER | {"fsdp": True}, None),
        (TRAINER | {"deepspeed": {"zero_optimization": {"stage": 2}}}, None),
        (TRAINER | {"bf16": False}, None),
        (TRAINER | {"bf16": "yes"}, None),
        (FSDP, None),
        ({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}, None),
        ({"strategy": {"kind": "ddp"}}, None),
        (None, None),
    ],
)
def test_a_file_that_trains_under_autocast_means_that_precision(
    inputs: dict[str, Any] | None, owner: str | None
) -> None:
    actual_implied_precision = implied_precision(inputs)
    assert (actual_implied_precision is None) == (owner is None)
    if actual_implied_precision is not None:
        precision, note = actual_implied_precision
        assert precision == PRECISIONS["bf16-autocast"] and f"because {owner} computes" in note


def test_bf16_under_ddp_names_the_precision_it_is() -> None:
    with pytest.raises(ValueError, match=r"bf16 \(true\).*computes in float32.*'bf16-autocast'"):
        read(TRAINER, FP32)
    with pytest.raises(ValueError, match=r"bf16 \(true\).*'bf16-mixed'"):
        read(TRAINER | {"fsdp": True}, FP32)


def test_sharded_files_cast_weights_where_autocast_is_measured() -> None:
    notes = read(TRAINER | {"fsdp": True}, AUTOCAST).notes
    assert any(
        "casts FSDP's weights to bfloat16; measured with float32 weights under autocast" in note for note in notes
    )


DS_AUTOCAST = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}


def test_deepspeeds_autocast_is_read_where_gradients_are_reduced_in_float32() -> None:
    zero: dict[str, Any] = {"zero_optimization": {"stage": 2}}
    assert strategy(zero | {"torch_autocast": DS_AUTOCAST}, AUTOCAST).stage == 2
    assert any("torch_autocast.enabled is absent" in note for note in read(zero, AUTOCAST).notes)
    for change, theirs, remedy in (
        ({"enabled": False}, "torch_autocast.enabled (false)", "true"),
        ({"dtype": "float16"}, "torch_autocast.dtype ('float16')", "bfloat16"),
        ({"lower_precision_safe_modules": None}, "lower_precision_safe_modules (None)", "write []"),
    ):
        with pytest.raises(ValueError) as rejected:
            read(zero | {"torch_autocast": DS_AUTOCAST | change}, AUTOCAST)
        assert theirs in str(rejected.value) and remedy in str(rejected.value)
    with pytest.raises(ValueError, match=r"bf16.enabled \(true\) casts weights.*'bf16-mixed'"):
        read(zero | {"bf16": {"enabled": True}}, AUTOCAST)
    with pytest.raises(ValueError, match=r"torch_autocast.enabled \(true\).*'bf16-autocast'"):
        read(zero | {"bf16": {"enabled": True}, "torch_autocast": DS_AUTOCAST}, BF16)


def test_mixed_precision_of_a_library_contradicts_states_below_float32() -> None:
    """Of bf16-true the model has the dtype, which the file does not show."""
    ddp = ACCELERATE | {"distributed_type": "MULTI_CPU", "num_processes": 2, "micro_batch": 4}
    for inputs, change in ((ddp, {"mixed_precision": "no"}), (TRAINER, {"bf16": False})):
        with pytest.raises(ValueError, match=r"keeps float32 states, but .*'bf16-true'.*set it to false"):
            read(inputs, TRUE)
        assert any("measured in bfloat16 throughout" in note for note in read(inputs | change, TRUE).notes)


def test_deepspeeds_switches_for_states_must_agree_with_the_precision() -> None:
    zero = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 2}
    switches = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    assert strategy(zero | {"bf16": {"enabled": True, **switches}}, TRUE).stage == 2
    with pytest.raises(ValueError, match=r"bf16_master_weights_and_grads \(absent\).*'bf16-true'.*set it to true"):
        read(zero | {"bf16": {"enabled": True}}, TRUE)
    with pytest.raises(ValueError, match=r"bf16_optimizer_states \(false\).*set it to true"):
        read(zero | {"bf16": {"enabled": True, **switches, "bf16_optimizer_states": False}}, TRUE)
    with pytest.raises(ValueError, match=r"\(true\).*use precision 'bf16-true'"):
        read(zero | {"bf16": {"enabled": True, **switches}})


AO = FSDP | {"mixed_precision": "fp8", "fp8_config": {"backend": "AO", "enable_fsdp_float8_all_gather": False}}


def test_accelerates_fp8_by_torchao_is_read_as_the_recipe() -> None:
    float8 = BF16.model_copy(update={"float8": "tensorwise"})
    config, notes = read(AO, float8)
    assert config is not None and config.backend in ("fsdp1", "fsdp2")
    assert any("leaves out the model's first and last linear layer" in note for note in notes)
    assert not any("all_gather" in note or "fp8_config is not applied" in note for note in notes)
    assert any("pad_inner_dim is true by file or default; measured as false" in note for note in notes)
    assert strategy(ACCELERATE | {"mixed_precision": "fp8"}, float8) == DdpConfig()


FSDP2 = {"fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}


@pytest.mark.parametrize(
    ("changes", "gathers", "words"),
    [
        (FSDP2, False, None),
        (FSDP2 | {"fp8_config": {"backend": "AO"}}, True, None),
        (FSDP2 | {"fp8_config": {"backend": "AO", "enable_fsdp_float8_all_gather": True}}, True, None),
        (
            {"fsdp_config": {"fsdp_version": 1}, "fp8_config": {}},
            False,
            "measured as false: only FSDP2 gathers in float8",
        ),
        (
            {"fsdp_config": {"fsdp_version": 2, "fsdp_offload_params": True}, "fp8_config": {}},
            False,
            "measured as false: float8_gather (true) with cpu_offload (true)",
        ),
        (
            FSDP2
            | {
                "fp8_config": {},
                "parallelism_config": {
                    "parallelism_config_dp_replicate_size": 2,
                    "parallelism_config_dp_shard_size": 1,
                },
            },
            False,
            "measured as false: float8_gather (true) with dp_shard (1)",
        ),
    ],
)
def test_accelerates_float8_gathers_are_read_where_fsdp2_has_them(
    changes: dict[str, Any], gathers: bool, words: str | None
) -> None:
    config, notes = read(AO | changes, BF16.model_copy(update={"float8": "tensorwise"}))
    assert config is not None and getattr(config.strategy, "float8_gather", False) is gathers
    told = [note for note in notes if "enable_fsdp_float8_all_gather" in note]
    assert (told == []) if words is None else (len(told) == 1 and words in told[0])


@pytest.mark.parametrize(
    ("inputs", "recipe", "words"),
    [
        (AO, None, "but the workload's float8 is none; state float8 'tensorwise', or use bf16"),
        (AO, "rowwise", "but the workload's float8 is 'rowwise'; state float8 'tensorwise'"),
        (AO | {"fp8_config": {"backend": "TE"}}, "tensorwise", "backend ('te') is not measured; use AO (torchao)"),
    ],
)
def test_other_fp8_than_the_workloads_is_rejected(inputs: dict[str, Any], recipe: str | None, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        read(inputs, BF16.model_copy(update={"float8": recipe}))
