"""Number formats, optimizers, DoRA, packed samples and MLPs in slices on the CUDA GPUs of this machine: each trains the same
under another backend, or without the knob."""

from typing import Any

import pytest

from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.tuner.verdict import parity
from tests.gpu.gpu_machine import GpuMachine

pytestmark = pytest.mark.gpu

DDP: dict[str, Any] = {"kind": "ddp"}
FSDP1: dict[str, Any] = {"kind": "fsdp1"}
FSDP2: dict[str, Any] = {"kind": "fsdp2"}
ZERO2: dict[str, Any] = {"kind": "zero", "stage": 2}
FP16: dict[str, Any] = {"precision": "fp16-mixed"}
BY_CHANCE: dict[str, Any] = {"precision": "bf16-true", "optimizer": {"kind": "adamw-bf16"}}
PACKED: dict[str, Any] = {"data": {"lengths": [3, 31, 5, 29, 3, 7, 31, 4], "layout": "packed"}}
DORA: dict[str, Any] = {"adapter": {"kind": "lora", "rank": 8, "alpha": 16, "dora": True}}


def measured(machine: GpuMachine, task: TrialTask) -> Measurement:
    """Measurement of the trial; the test is skipped where the machine lacks a library or units for the number format."""
    result = machine.run(task)
    if isinstance(result, Failure) and result.kind is FailureKind.SETUP:
        pytest.skip(result.message)
    assert isinstance(result, Measurement), result
    return result


def assert_same(machine: GpuMachine, task: TrialTask, reference: TrialTask) -> None:
    """Train both, and compare their losses, norms and weights as a study does."""
    workload = task.workload
    bounds = parity.tolerance(workload.precision, workload.optimizer, workload.float8)
    pairs = zip(measured(machine, task).trajectory, measured(machine, reference).trajectory, strict=True)
    for theirs, ours in pairs:
        assert parity.step_difference(ours, theirs, bounds.at_step(ours.step), "the reference") is None


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        pytest.param(ZERO2, FP16, id="fp16, zero-2"),
        pytest.param(FSDP1, FP16, id="fp16, fsdp1"),
        pytest.param(FSDP2, FP16, id="fp16, fsdp2"),
        pytest.param(FSDP2, {"float8": "tensorwise"}, id="float8 tensorwise, fsdp2"),
        pytest.param(ZERO2, {"float8": "rowwise"}, id="float8 rowwise, zero-2"),
        pytest.param(FSDP2, BY_CHANCE, id="bfloat16 AdamW, fsdp2"),
        pytest.param(ZERO2, {"optimizer": {"kind": "adamw-8bit"}}, id="8-bit AdamW, zero-2"),
        pytest.param(FSDP2, {"optimizer": {"kind": "muon"}}, id="muon, fsdp2"),
        pytest.param(FSDP2, DORA, id="dora, fsdp2"),
        pytest.param(FSDP2, PACKED, id="packed samples, fsdp2"),
    ],
)
def test_each_training_is_the_same_under_another_backend(
    machine: GpuMachine, strategy: dict[str, Any], changes: dict[str, Any]
) -> None:
    assert_same(machine, machine.task(strategy, **changes), machine.task(DDP, **changes))


def test_mlps_in_slices_train_the_same(machine: GpuMachine) -> None:
    full = {"activation_checkpointing": "full"}
    assert_same(machine, machine.task(DDP, mlp_slices=4, **full), machine.task(DDP, **full))
