"""Failures are told apart by type and place; warm-up and timing end by arithmetic alone."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.workers.rank import classify
from shardtune.workers.rank.device import CpuDevice
from shardtune.workers.rank.fork_server import early_imports
from shardtune.workers.rank.measure import throughput
from shardtune.workers.rank.measure.compilations import Compilations
from shardtune.workers.rank.model import build as models
from shardtune.workers.rank.training.loop import Loop

CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"


def raised(*errors: Exception, suppressed: bool = False) -> Exception:
    """The last of them, as it is caught when each was raised while the one before it was handled."""
    caught = errors[0]
    for error in errors[1:]:
        error.__context__, error.__suppress_context__ = caught, suppressed
        caught = error
    return caught


def because(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class _InductorError(RuntimeError):
    """torch's own is raised `from None`, while what it wraps is handled."""


OUT = torch.OutOfMemoryError("anything")
PLAN = MeasurePlan(window_steps=2, min_windows=2, max_windows=4, target_half_width=0.05, max_measure_s=10)


@pytest.mark.parametrize(
    ("error", "phase", "kind"),
    [
        (torch.OutOfMemoryError("anything"), "training", FailureKind.OOM),
        (MemoryError(), "building", FailureKind.OOM),
        (ValueError("out of memory"), "building", FailureKind.ILLEGAL),
        (ValueError("out of memory"), "training", FailureKind.CRASH),
        (RuntimeError("CUDA out of memory"), "training", FailureKind.CRASH),
        (AssertionError("ours"), "building", FailureKind.CRASH),
        (classify.NumericsError("loss is nan"), "training", FailureKind.NUMERICS),
        (classify.SetupError("no compiler"), "starting", FailureKind.SETUP),
        (RuntimeError(CUBLAS), "training", FailureKind.OOM),
        (ValueError(CUBLAS), "training", FailureKind.CRASH),
        (RuntimeError("CUDA driver error: out of memory"), "training", FailureKind.OOM),
        (RuntimeError("CUDA driver error: invalid argument"), "training", FailureKind.CRASH),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "training", FailureKind.OOM),
        (because(RuntimeError("backend compiler failed"), OUT), "training", FailureKind.OOM),
        (raised(OUT, _InductorError("lowering"), suppressed=True), "training", FailureKind.OOM),
        (raised(RuntimeError(CUBLAS), KeyError("x"), ValueError("y")), "building", FailureKind.OOM),
        (because(classify.SetupError("the disk is full"), MemoryError()), "training", FailureKind.SETUP),
        (OSError(28, "No space left on device"), "training", FailureKind.SETUP),
        (because(RuntimeError("the checkpoint was not written"), OSError(122, "quota")), "training", FailureKind.SETUP),
        (OSError(5, "Input/output error"), "training", FailureKind.CRASH),
        (ImportError("the package flash_attn seems to be not installed"), "building", FailureKind.SETUP),
        (ImportError("anything"), "training", FailureKind.CRASH),
        (FailOnRecompileLimitHit("Hard failure"), "training", FailureKind.ILLEGAL),
        (because(RuntimeError("in forward"), FailOnRecompileLimitHit("Hard failure")), "training", FailureKind.ILLEGAL),
    ],
)
def test_kind_follows_from_type_and_phase(error: Exception, phase: classify.Phase, kind: FailureKind) -> None:
    assert classify.failure_of(error, phase, rank=1).kind is kind


def test_a_recompile_limit_is_told_with_its_remedy() -> None:
    failure = classify.failure_of(FailOnRecompileLimitHit("Hard failure"), "training", rank=0)
    assert "set compile to false" in failure.message and "recompilations" in failure.message


@pytest.mark.parametrize(
    ("config", "knob"),
    [
        (TrialConfig(strategy=ZeroConfig(stage=3, deepcompile=True)), "deepcompile"),
        (TrialConfig(strategy=ZeroConfig(stage=3), compile=True), "compile"),
        (TrialConfig(strategy=DdpConfig(), compile=True), "compile"),
    ],
)
@pytest.mark.parametrize("error", [FailOnRecompileLimitHit("Hard failure"), RuntimeError("Failed to find C compiler.")])
def test_a_failed_compilation_names_the_knob_that_compiles(error: Exception, config: TrialConfig, knob: str) -> None:
    message = classify.failure_of(error, "training", 0, config=config).message
    assert message.startswith(f"{knob} (true)") and f" set {knob} to false" in message


def test_a_gpu_that_is_busy_or_unavailable_is_told_with_each_cause() -> None:
    text = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    coded = torch.AcceleratorError(text)
    coded.error_code = 46  # type: ignore[attr-defined]
    for error in (RuntimeError(text), because(RuntimeError("start failed"), coded)):
        failure = classify.failure_of(error, "starting", 0)
        assert failure.kind is FailureKind.DEVICE
        for cause in ("exclusive mode", "another process", "memory", "nvidia-smi -c 0"):
            assert cause in failure.message
    lost = classify.failure_of(RuntimeError("CUDA error: no CUDA-capable device is detected"), "starting", 0)
    assert lost.kind is FailureKind.DEVICE and "exclusive mode" not in lost.message


GCC = subprocess.CalledProcessError(1, ["/usr/bin/gcc", "/tmp/x/cuda_utils.c", "-O3", "-shared", "-fPIC"])


@pytest.mark.parametrize(
    "error",
    [
        raised(GCC, _InductorError(f"CalledProcessError: {GCC}"), suppressed=True),
        _InductorError(f"SubprocException: An exception occurred in a subprocess:\n\nName=triton_1\nTraceback\n{GCC}"),
        RuntimeError("Failed to find C compiler. Please specify via CC environment variable"),
        because(RuntimeError("backend failed"), InvalidCxxCompiler()),
        CppCompileError(["g++", "x.cpp"], "x.h:4:10: fatal error: Python.h: No such file or directory"),
    ],
    ids=["gcc fails", "gcc fails in torch's subprocess", "no gcc", "no g++", "no headers"],
)
def test_a_host_that_cannot_compile_is_told_what_to_install(error: Exception) -> None:
    failure = classify.failure_of(error, "training", rank=0)
    # A crash: the search learns of one that comes twice, and of no lack of the worker.
    assert failure.kind is FailureKind.CRASH and "python3-dev" in failure.message and str(error)[:60] in failure.message
    other = subprocess.CalledProcessError(1, ["numactl", "--show"])
    assert "python3-dev" not in classify.failure_of(other, "training", rank=0).message


class _FullDevice(CpuDevice):
    def free_bytes(self) -> int:
        return 0


def _nccl_error(last: str) -> torch.distributed.DistBackendError:
    return torch.distributed.DistBackendError(
        f"NCCL error in: NCCLUtils.cpp:94, unhandled system error\nLast error:\n{last}"
    )


@pytest.mark.parametrize("action", ["Error while creating shared memory segment", "Error: failed to extend"])
def test_a_container_with_too_little_shared_memory_for_nccl_is_told_how_to_start_it(action: str) -> None:
    error = _nccl_error(f"{action} /dev/shm/nccl-1YsMbG (size 7340384), error: No space left on device (28)")
    failure = classify.failure_of(because(RuntimeError("in backward"), error), "training", 3, _FullDevice())
    assert failure.kind is FailureKind.SETUP and "--shm-size=1g" in failure.message
    other = torch.distributed.DistBackendError("NCCL error in: NCCLUtils.cpp:94, unhandled system error")
    assert classify.failure_of(other, "training", 3, _FullDevice()).kind is FailureKind.OOM


def test_a_file_of_nccl_that_a_peer_took_along_or_cuda_could_not_pin_is_no_lack_of_shared_memory() -> None:
    """NCCL names the file in each of its errors there. Only a peer's own failure, or a full device, explains these."""
    gone = _nccl_error(
        "Error while attaching to shared memory segment /dev/shm/nccl-1 (size 9), error: No such file (2)"
    )
    assert classify.failure_of(gone, "training", 3).kind is FailureKind.CRASH
    unpinned = _nccl_error("Error while creating shared memory segment /dev/shm/nccl-1 (size 9), error: Success (0)")
    assert classify.failure_of(unpinned, "training", 3, _FullDevice()).kind is FailureKind.OOM


def test_a_chain_that_bites_its_tail_ends() -> None:
    runtime_error, other = RuntimeError("one"), RuntimeError("other")
    runtime_error.__context__, other.__context__ = other, runtime_error
    assert classify.failure_of(runtime_error, "training", rank=0).kind is FailureKind.CRASH


def test_attention_whose_package_is_missing_is_the_worker_s_lack() -> None:
    with pytest.raises(ImportError) as caught:
        models.build(preset("llama-tiny"), Workload(sequence_length=8, global_batch=2, attention="flash_attention_2"))
    failure = classify.failure_of(caught.value, "building", rank=0)
    assert failure.kind is FailureKind.SETUP and "FlashAttention2" in failure.message


def test_a_module_that_fails_in_its_own_way_does_not_end_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "breaks_when_imported.py").write_text(
        "raise OSError('libcudart.so.12: cannot open shared object file')"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    early_imports.import_if_there("breaks_when_imported")
    early_imports.import_if_there("no_such_module_anywhere")
    assert "libcudart" in capsys.readouterr().err


def test_a_step_is_steady_after_three_alike() -> None:
    assert not throughput.is_steady([1.0, 1.0])
    assert not throughput.is_steady([1.0, 1.2, 1.0])
    assert throughput.is_steady([5.0, 1.0, 1.02, 1.01])


@pytest.mark.parametrize(
    ("warm_up_s", "reused"),
    [([12.0, 10.0, 10.1, 10.2], 3), ([10.0, 12.0, 10.0], 0), ([1.0, 1.0, 1.0], 0)],
    ids=["steady and slow", "not steady", "windows of several steps"],
)
def test_steady_steps_that_are_slow_are_not_timed_a_second_time(warm_up_s: list[float], reused: int) -> None:
    plan = MeasurePlan()
    assert throughput.reused_steps(warm_up_s, throughput.steps_per_window(warm_up_s, plan), plan) == reused
    # A plan whose windows always hold one step asks for them after the warm-up.
    assert throughput.reused_steps(warm_up_s, 1, MeasurePlan(window_steps=1)) == 0


@pytest.mark.parametrize(("has_batches", "runs"), [(True, False), (False, True)], ids=["own loop", "user's script"])
def test_a_loop_whose_slow_steps_are_steady_runs_none_more(has_batches: bool, runs: bool) -> None:
    loop = _loop_after_warm_up([12.0, 10.0, 10.1, 10.2], has_batches)
    steps = loop._measure()
    if runs:
        with pytest.raises(_Started):
            next(steps)
        return
    assert list(steps) == []
    assert loop.outcome.window_step_times_s == loop.outcome.own_step_times_s == [10.0, 10.1, 10.2]
    assert loop.outcome.warmup_step_times_s == [12.0]
    # What the steps compiled whose times count was compiled while they were timed.
    assert loop.outcome.compiled_before_timing.frames == 1


class _Started(Exception):
    """A further step began."""


def _loop_after_warm_up(warm_up_s: list[float], has_batches: bool) -> Loop:
    task = SimpleNamespace(
        plan=MeasurePlan(),
        config=TrialConfig(strategy=DdpConfig()),
        workload=SimpleNamespace(steps_per_cycle=1, precision=PRECISIONS["fp32"]),
    )
    setting: Any = SimpleNamespace(task=task, accumulation=0, context=SimpleNamespace(world_size=1))
    loop = Loop(lambda: (None, None), setting, SimpleNamespace() if has_batches else None, SimpleNamespace())  # type: ignore[arg-type]

    def start(*_: object) -> Any:
        raise _Started

    loop._timed = start  # type: ignore[method-assign]
    loop._own_warmup_step_times_s = list(warm_up_s)
    loop._spent_s = list(warm_up_s)
    loop.outcome.warmup_step_times_s = list(warm_up_s)
    loop._compiled_before = [Compilations(frames, 0, 0) for frames in range(len(warm_up_s))]
    return loop


@pytest.mark.parametrize(
    ("times", "enough"),
    [([1.0], False), ([1.0, 1.0], True), ([1.0, 1.5], False), ([1.0, 1.5, 1.0, 1.5], True), ([3.0, 4.0], True)],
    ids=["too few", "narrow interval", "wide interval", "all windows", "out of time"],
)
def test_timing_ends_when_the_plan_is_satisfied(times: list[float], enough: bool) -> None:
    assert throughput.is_enough(times, 2, PLAN) is enough


@pytest.mark.parametrize(
    ("times", "hopeless"),
    [([3.0, 3.1], False), ([3.0, 3.1, 3.0], True), ([9.0, 4.0, 3.0], False), ([3.0, 1.9, 3.0, 3.0, 3.0], False)],
    ids=["too few", "surely slower", "still falling", "one step was fast enough"],
)
def test_steps_that_are_surely_too_long_are_not_timed_on(times: list[float], hopeless: bool) -> None:
    assert throughput.is_hopeless(times, MeasurePlan(prune_above_s=2.0)) is hopeless
    assert not throughput.is_hopeless(times, MeasurePlan())


@pytest.mark.parametrize(
    ("step_s", "steps"), [(45.0, 1), (1.5, 2), (0.5, 3), (0.1, 4), (0.002, 100)], ids=lambda value: str(value)
)
def test_windows_have_steps_by_how_long_these_take(step_s: float, steps: int) -> None:
    plan = MeasurePlan()
    assert throughput.steps_per_window([9.0, step_s, step_s, step_s], plan) == steps
    fewest_s = plan.min_windows * steps * step_s
    assert steps == 1 or steps == 100 or plan.min_measure_s <= fewest_s <= plan.max_measure_s
