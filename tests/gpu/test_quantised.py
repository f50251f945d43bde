"""LoRA beside 4-bit weights on the CUDA GPUs of this machine: bitsandbytes' own kernels, each backend's memory."""

from typing import Any

import pytest

from shardtune.tuner.verdict import parity
from tests.gpu.gpu_machine import GpuMachine
from tests.support.ranks.predicted_memory import predicted_gib

pytestmark = pytest.mark.gpu

QLORA: dict[str, Any] = {"kind": "lora", "rank": 8, "alpha": 16, "quantization": "nf4"}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    "fsdp2": {"kind": "fsdp2"},
    "zero-2": {"kind": "zero", "stage": 2},
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_4_bit_weights_train_the_same_in_the_predicted_memory(machine: GpuMachine, name: str) -> None:
    pytest.importorskip("bitsandbytes", reason="shardtune[8bit] is not installed here")
    task = machine.task(STRATEGIES[name], adapter=QLORA)
    measured = machine.measured(task)
    reference = measured if name == "ddp" else machine.measured(machine.task(STRATEGIES["ddp"], adapter=QLORA))
    bounds = parity.tolerance(task.workload.precision)
    for theirs, ours in zip(measured.trajectory, reference.trajectory, strict=True):
        assert parity.step_difference(ours, theirs, bounds, "DDP") is None
    # The predictor's own uncertainty on GPUs (docs/measurements/gpu/h200.md).
    assert predicted_gib(task) == pytest.approx(measured.memory.peak_allocated_gib, rel=0.15)


def test_4_bit_weights_take_less_memory_than_16_bit_ones(machine: GpuMachine) -> None:
    pytest.importorskip("bitsandbytes", reason="shardtune[8bit] is not installed here")
    packed, plain = (
        machine.measured(machine.task(STRATEGIES["ddp"], adapter=QLORA | {"quantization": quantization})).memory
        for quantization in ("nf4", None)
    )
    assert packed.peak_allocated_gib < plain.peak_allocated_gib
