"""A traced step of own code: its peak is the measured one, and what cannot be traced names a coded reason."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from benchmarks.own_code import plain_models as plain
from benchmarks.own_code.__main__ import compare, measured_peak, workload
from benchmarks.own_code.scripts import SCRIPTS, OwnScript
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.step_trace import StepTrace, TraceFailure
from shardtune.api_schemas.training.workload import PRECISIONS
from shardtune.workers.rank.own_code import trace_process, trace_step
from shardtune.workers.rank.own_code.step_recorder import StepRecorder

BY_NAME = {script.name: script for script in SCRIPTS}
TASK = workload(BY_NAME["nanogpt"])


@pytest.mark.parametrize("name", ["nanogpt", "unet", "custom-loss", "control-flow", "lora"])
def test_the_traced_peak_is_the_measured_one_of_the_same_step(name: str) -> None:
    for row in compare(BY_NAME[name]):
        assert row.error == pytest.approx(0, abs=0.01), row


@pytest.mark.parametrize("name", ["numpy", "routed-experts"])
def test_a_step_that_reads_values_of_activations_has_a_coded_reason(name: str) -> None:
    assert {row.failure for row in compare(BY_NAME[name])} == {BY_NAME[name].expected_failure}


def test_blocks_and_loss_add_up_to_the_peak_and_work_to_three_passes() -> None:
    trace = trace_step.trace(BY_NAME["nanogpt"], TASK)
    # The token table's head has the only gradient at the loss's peak; both are the same bytes on any machine.
    at_loss = trace.outside.at(6) + plain.LAYERS * trace.block.at(6) + trace.loss.at(6)
    assert at_loss == pytest.approx(trace.peak.at(6), rel=0.05)
    assert trace.forward + trace.backward.flops == pytest.approx(3 * trace.forward, rel=0.15)
    elements = sum(trace.outside_tensors) + plain.LAYERS * sum(trace.block_tensors)
    assert elements == sum(parameter.numel() for parameter in plain.NanoGpt().parameters())


@pytest.mark.parametrize("precision", ["bf16-autocast", "bf16-mixed"])
def test_a_lower_precision_keeps_fewer_bytes(precision: str) -> None:
    lower = trace_step.trace(BY_NAME["nanogpt"], TASK.model_copy(update={"precision": PRECISIONS[precision]}))
    assert lower.block.per_sample < 0.9 * trace_step.trace(BY_NAME["nanogpt"], TASK).block.per_sample


def test_a_freed_gradient_does_not_hide_the_tensor_that_takes_its_place() -> None:
    with StepRecorder([]) as recorder:
        for _ in range(50):
            gradient = torch.empty(1000)
            recorder.mark_gradient(gradient)
            del gradient
            kept = torch.empty(1000)
            assert recorder.live == 4000
            del kept


def test_the_work_space_of_convolutions_counts() -> None:
    script = replace(BY_NAME["unet"], make_model=lambda: nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3)))
    script = replace(script, loss_of=lambda model, batch: model(batch["image"]).square().mean())
    traced = trace_step.trace(script, workload(script)).peak.at(4)
    assert traced == pytest.approx(measured_peak(script, 4), rel=0.02)


CODE = """
import os, sys, time, torch
from torch import nn

def build_model(config, workload):
    return nn.Sequential(nn.Embedding(512, 32), nn.Linear(32, 512))

def make_batch(config, workload, step, samples, device):
    return torch.zeros(len(samples), workload.sequence_length, dtype=torch.int64)

def loss(model, batch):
    {statement}
    return model(batch).square().mean()
"""

Install = Callable[[str], ModelSpec]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installer of an entry point whose loss runs a statement."""

    def write(statement: str) -> ModelSpec:
        facts = tmp_path / "own_code_test-1.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: own-code-test\nVersion: 1\n")
        (facts / "entry_points.txt").write_text("[shardtune.models]\nown-code-test = own_code_test\n")
        (tmp_path / "own_code_test.py").write_text(CODE.format(statement=statement))
        monkeypatch.syspath_prepend(str(tmp_path))
        return ModelSpec(name="own", entry_point="own-code-test")

    return write


def test_a_trace_in_a_process_is_the_same(install: Install) -> None:
    traced = trace_process.trace(install("print('words of the code')"), TASK)
    assert isinstance(traced, StepTrace)
    assert traced.outside_tensors == () and traced.block_tensors == (512 * 32, 512 * 32, 512)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("if model(batch).sum() > 0: return model(batch).mean()", "data_dependent"),
        ("raise KeyError('a' * 5000 + chr(27))", "error"),
        ("os._exit(0)", "crashed"),
        ("torch.ones(1 << 33)", "memory"),
        ("open(sys.argv[1], 'w').write('{\"trace\": {\"peak\": -1}}') and os._exit(0)", "crashed"),
    ],
)
def test_code_that_cannot_be_traced_costs_a_study_its_predictions_alone(
    install: Install, statement: str, code: str
) -> None:
    failure = trace_process.trace(install(statement), TASK)
    assert isinstance(failure, TraceFailure)
    assert failure.code == code, failure
    assert "\x1b" not in failure.message and f"({code})" in failure.note


def test_code_that_hangs_is_ended_in_time(install: Install) -> None:
    begin = time.monotonic()
    failure = trace_process.trace(install("time.sleep(1000)"), TASK, limit_s=20)
    assert isinstance(failure, TraceFailure) and failure.code == "time"
    assert time.monotonic() - begin < 40
    assert not any("trace_process" in " ".join(child.cmdline()) for child in psutil.Process().children(recursive=True))


def test_a_trace_ends_with_the_process_that_started_it(install: Install, tmp_path: Path) -> None:
    spec = install(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(1000)")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from shardtune.api_schemas.training.models import ModelSpec\n"
        "from shardtune.api_schemas.training.workload import Workload\n"
        "from shardtune.workers.rank.own_code import trace_process\n"
        f"trace_process.trace(ModelSpec.model_validate_json({spec.model_dump_json()!r}),"
        f" Workload.model_validate_json({TASK.model_dump_json()!r}))\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program])
    try:
        pid = int(_wait_for(lambda: (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""))
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
    _wait_for(lambda: "" if psutil.pid_exists(pid) else "ended")


def _wait_for(text: Callable[[], str], patience_s: float = 60.0) -> str:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if found_text := text():
            return found_text
        time.sleep(0.05)
    raise AssertionError(f"nothing came within {patience_s} s")


def test_every_script_of_the_benchmark_says_whether_it_can_be_traced() -> None:
    assert [script.name for script in SCRIPTS if script.expected_failure] == ["numpy", "routed-experts"]
    assert sum(isinstance(script, OwnScript) for script in SCRIPTS) >= 10
