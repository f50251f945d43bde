"""Trials on the CUDA GPUs of this machine: real forks, real OOM, real offload. One GPU shards nothing."""

import json
import subprocess
import sys
from typing import Any

import pytest

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.diagnosis import ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.leases import ResumeTask, TraceTask
from shardtune.api_schemas.trials.objective import Objective
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.tuner.prediction import memory_gate
from shardtune.tuner.prediction.calibration import MemoryCalibration
from shardtune.tuner.prediction.traced_shape import of_study
from shardtune.tuner.verdict import parity
from tests.gpu.gpu_machine import GpuMachine

pytestmark = pytest.mark.gpu

DDP: dict[str, Any] = {"kind": "ddp"}
FSDP2: dict[str, Any] = {"kind": "fsdp2"}
FSDP1: dict[str, Any] = {"kind": "fsdp1"}
ZERO3: dict[str, Any] = {"kind": "zero", "stage": 3}
LORA: dict[str, Any] = {"kind": "lora", "rank": 8, "alpha": 16}
STAGES = [ZERO3 | {"stage": 1}, ZERO3 | {"stage": 2}, ZERO3]


def test_a_fork_after_the_imports_can_use_the_gpu(machine: GpuMachine) -> None:
    host = subprocess.run(
        [sys.executable, "-m", "shardtune.workers.rank.fork_server"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    ready = json.loads(host.stdout.splitlines()[0])
    assert ready["unsafe"] is None


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16-autocast"])
def test_every_backend_trains_the_same(machine: GpuMachine, precision: str) -> None:
    reference = machine.measured(machine.task(DDP, precision=precision))
    for strategy in (*STAGES, FSDP2, FSDP1):
        task = machine.task(strategy, precision=precision)
        for theirs, ours in zip(machine.measured(task).trajectory, reference.trajectory, strict=True):
            bounds = parity.tolerance(task.workload.precision)
            assert parity.step_difference(ours, theirs, bounds, "DDP") is None, strategy


@pytest.mark.parametrize("strategy", [DDP, ZERO3, FSDP2, FSDP1], ids=lambda strategy: strategy["kind"])
def test_a_resumed_trial_continues_training(machine: GpuMachine, strategy: dict[str, Any]) -> None:
    task = machine.task(strategy)
    result = machine.run(ResumeTask.model_validate({"trial": task.model_dump(), "plan": {"max_train_s": 0.1}}))
    assert isinstance(result, ResumeMeasurement), result
    bounds = parity.tolerance(task.workload.precision)
    for uninterrupted, resumed in zip(result.uninterrupted, result.resumed, strict=True):
        assert parity.step_difference(uninterrupted, resumed, bounds, "the run that was not interrupted") is None


@pytest.mark.parametrize("strategy", [DDP, ZERO3 | {"stage": 2}, FSDP2, FSDP1], ids=lambda strategy: strategy["kind"])
@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_every_checkpointing_trains(machine: GpuMachine, strategy: dict[str, Any], checkpointing: str) -> None:
    memory = machine.measured(machine.task(strategy, activation_checkpointing=checkpointing)).memory
    assert memory.peak_reserved_gib is not None and memory.device_used_gib is not None
    assert 0 < memory.peak_allocated_gib <= memory.peak_reserved_gib <= memory.device_used_gib


@pytest.mark.parametrize("strategy", [DDP, ZERO3, FSDP2], ids=["ddp", "zero-3", "fsdp2"])
def test_inputs_in_host_memory_train_the_same_in_less_memory(machine: GpuMachine, strategy: dict[str, Any]) -> None:
    # Beside an adapter: full training has its peak at the end of backward, when all gradients exist and no input does.
    knobs = {"adapter": LORA, "activation_checkpointing": "full", "micro_batch": 2}
    plain, offloaded = (
        machine.measured(machine.task(strategy, activation_offload=offloads, **knobs)) for offloads in (False, True)
    )
    bounds = parity.tolerance(machine.task(strategy).workload.precision)
    for theirs, ours in zip(offloaded.trajectory, plain.trajectory, strict=True):
        assert parity.step_difference(ours, theirs, bounds, "inputs on the device") is None
    assert offloaded.memory.peak_allocated_gib < plain.memory.peak_allocated_gib


@pytest.mark.parametrize(
    "strategy",
    [
        FSDP2 | {"cpu_offload": True},
        FSDP1 | {"cpu_offload": True},
        ZERO3 | {"offload_optimizer": {}},
        ZERO3 | {"offload_param": {}},
    ],
    ids=["fsdp2", "fsdp1", "zero-optimizer", "zero-parameters"],
)
def test_offload_trains(machine: GpuMachine, strategy: dict[str, Any]) -> None:
    # FSDP1 accumulates no offloaded gradients, which it says before a trial.
    machine.measured(machine.task(strategy, micro_batch=2))


@pytest.mark.parametrize(
    "strategy",
    [DDP, ZERO3 | {"stage": 2}, ZERO3, FSDP2, FSDP1 | {"use_orig_params": True}],
    ids=["ddp", "zero-2", "zero-3", "fsdp2", "fsdp1"],
)
def test_compiled_blocks_train(machine: GpuMachine, strategy: dict[str, Any]) -> None:
    machine.measured(machine.task(strategy, compile=True))


def test_the_environment_of_a_trial_takes_effect(machine: GpuMachine) -> None:
    """Segments that grow leave less of the device reserved beyond what is allocated."""
    environment = {"expandable_segments": True, "max_connections": 1, "threads": 2, "malloc": "keep"}
    memory = machine.measured(machine.task(DDP, **environment)).memory
    assert memory.peak_reserved_gib is not None
    assert memory.peak_reserved_gib <= 1.02 * memory.peak_allocated_gib + 0.1


def test_running_out_of_device_memory_is_infeasible_not_a_crash(machine: GpuMachine) -> None:
    batch = 64 * int(machine.cluster["memory_gib"]) * machine.cluster["gpus_per_node"]
    result = machine.run(machine.task(DDP, micro_batch=64 * int(machine.cluster["memory_gib"]), global_batch=batch))
    assert isinstance(result, Failure) and result.kind is FailureKind.OOM, result


def test_a_trace_that_runs_out_of_device_memory_says_what_was_held_where(machine: GpuMachine) -> None:
    batch = 64 * int(machine.cluster["memory_gib"]) * machine.cluster["gpus_per_node"]
    trial = machine.task(DDP, micro_batch=64 * int(machine.cluster["memory_gib"]), global_batch=batch)
    result = machine.run(TraceTask(trial=trial))
    assert isinstance(result, Failure) and result.kind is FailureKind.OOM, result
    assert "rank 0 held " in result.message and "activations" in result.message


@pytest.mark.parametrize("strategy", [DDP, ZERO3, FSDP2, FSDP1], ids=lambda strategy: strategy["kind"])
def test_a_trace_says_what_device_memory_was_made_of(machine: GpuMachine, strategy: dict[str, Any]) -> None:
    trial = machine.task(strategy)
    result = machine.run(TraceTask(trial=trial))
    assert isinstance(result, ProfilerRecording) and result.memory is not None, result
    memory, counted = result.memory, machine.measured(trial).memory
    assert 0.95 <= sum(memory.kinds.values()) / memory.bytes <= 1.05, memory
    assert (
        memory.kinds["parameters"] > 0 and memory.reserved_bytes is not None and memory.reserved_bytes >= memory.bytes
    )
    assert counted.peak_allocated_gib is not None
    # NCCL holds DDP's first buckets until a collective after its watchdog's look (`TensorShelf` of ProcessGroupNCCL), so a
    # second step can meet both sets of buckets.
    again = memory.kinds["parameters"] / GIB if strategy == DDP else 0.0
    counted_gib = counted.peak_allocated_gib
    assert 0.95 * counted_gib <= memory.peak_bytes / GIB <= 1.05 * counted_gib + again


@pytest.mark.parametrize("strategy", [DDP, ZERO3, FSDP2, FSDP1], ids=lambda strategy: strategy["kind"])
def test_the_gate_lets_pass_what_fits(machine: GpuMachine, strategy: dict[str, Any]) -> None:
    trial = machine.task(strategy)
    profiled = subprocess.run(
        [sys.executable, "-c", MODEL_SUMMARY], input=trial.model_dump_json(), capture_output=True, text=True, check=True
    )
    used = machine.measured(trial).memory.device_used_gib
    shape = of_study(trial.model, ModelSummary.model_validate_json(profiled.stdout))
    exactly = trial.cluster.model_copy(update={"memory_gib": used})
    everything = Objective(memory_headroom=0.0)
    assert (
        memory_gate.reject_if_too_large(trial.config, shape, trial.workload, exactly, everything, MemoryCalibration())
        is None
    )


MODEL_SUMMARY = """
import sys
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.workers.rank.training import model_summary
task = TrialTask.model_validate_json(sys.stdin.read())
print(model_summary.of(task.model, task.workload).model_dump_json())
"""
