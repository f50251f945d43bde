"""A DeepSpeed JSON within the file of another program: contradictions of the two are named, and so are DeepSpeed's clocks."""

from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline import resolve_with_notes

BF16 = Workload(sequence_length=64, global_batch=64)
EIGHT = Cluster(gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
ZERO: dict[str, Any] = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
TRAINER = {"output_dir": "out", "bf16": True, "max_grad_norm": 1}
ACCELERATE = {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16"}
MICRO, STEPS = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def trainers(batch: dict[str, int], json: dict[str, Any]) -> dict[str, Any]:
    return TRAINER | batch | {"deepspeed": ZERO | json}


def accelerates(micro_batch: int, json: dict[str, Any]) -> dict[str, Any]:
    return ACCELERATE | {"micro_batch": micro_batch, "deepspeed_config": {"deepspeed_config_file": ZERO | json}}


FOUR = {"per_device_train_batch_size": 4, STEPS: 2}


@pytest.mark.parametrize(
    ("file", "named"),
    [
        (trainers(FOUR, {MICRO: 2}), rf"baseline.deepspeed.{MICRO} \(2\), but the file .* has micro batch 4"),
        (trainers({}, {MICRO: 4}), rf"{MICRO} \(4\), but the file .* has micro batch 8, stated or by default"),
        (trainers(FOUR, {STEPS: 8}), rf"{MICRO} × {STEPS} × ranks \(4 × 8 × 8 = 256\)"),
        (accelerates(4, {MICRO: 2}), rf"{MICRO} \(2\), but the file .* has micro batch 4"),
        (ZERO | {MICRO: 2, "micro_batch": 4}, rf"baseline.{MICRO} \(2\), but the file .* has micro batch 4"),
        (
            ACCELERATE | {"micro_batch": 4, "deepspeed_config": {"zero_stage": 2, STEPS: 4}},
            rf"{MICRO} × {STEPS} × ranks \(4 × 4 × 8 = 128\)",
        ),
    ],
)
def test_another_batch_than_that_of_the_file_around_it_is_rejected(file: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        resolve_with_notes(file, BF16, EIGHT)


@pytest.mark.parametrize(
    "file",
    [
        trainers(FOUR, {MICRO: 4, STEPS: 2, "train_batch_size": 64}),
        trainers(FOUR, {MICRO: "auto", STEPS: "auto"}),
        accelerates(4, {STEPS: 2}),
        ZERO | {MICRO: 4, "micro_batch": 4},
    ],
)
def test_the_same_batch_is_measured(file: dict[str, Any]) -> None:
    config = resolve_with_notes(file, BF16, EIGHT).config
    assert config is not None and config.micro_batch == 4


def test_a_clock_for_which_deepspeed_waits_is_noted() -> None:
    clocks = {"wall_clock_breakdown": True, "flops_profiler": {"enabled": True}, "comms_logger": {"enabled": True}}
    said = resolve_with_notes(ZERO | clocks, BF16, EIGHT).notes
    for name in ("wall_clock_breakdown", "flops_profiler.enabled", "comms_logger.enabled"):
        assert sum(f"baseline.{name} (true) is not applied: " in note for note in said) == 1
    ones = {"wall_clock_breakdown": 1, "flops_profiler": {"enabled": 1}, "comms_logger": {"enabled": 1.0}}
    assert resolve_with_notes(ZERO | ones, BF16, EIGHT).notes == said
    off = {"wall_clock_breakdown": False, "flops_profiler": {"enabled": False}, "comms_logger": {}}
    assert resolve_with_notes(ZERO | off, BF16, EIGHT).notes == resolve_with_notes(ZERO, BF16, EIGHT).notes


def test_a_boolean_may_be_written_as_0_or_1() -> None:
    """DeepSpeed reads its switches so; another number is none."""

    def measured(overlap_comm: Any) -> Any:
        section = ZERO["zero_optimization"] | {"overlap_comm": overlap_comm}
        return resolve_with_notes(ZERO | {"zero_optimization": section, "bf16": {"enabled": 1}}, BF16, EIGHT).config

    for number in (0, 1):
        assert measured(number) == measured(bool(number)) is not None
    with pytest.raises(ValueError, match=r"overlap_comm \(2\) must be true or false"):
        measured(2)
