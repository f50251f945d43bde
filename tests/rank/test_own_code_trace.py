"""The process that traces own code: bounded in time and memory, and ended with the process that started it.

Two of them start cold; the others are forks that have torch imported.
"""

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.step_trace import StepTrace, TraceFailure
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.workers.rank.own_code import trace_process
from shardtune.workers.rank.own_code.step_recorder import StepRecorder
from tests.rank.helpers import forked_children
from tests.support.processes import preloaded_forks
from tests.support.processes.command_line import children_with

TASK = Workload(sequence_length=64, global_batch=8, precision=PRECISIONS["fp32"])


def test_a_freed_gradient_does_not_hide_the_tensor_that_takes_its_place() -> None:
    with StepRecorder([]) as recorder:
        for _ in range(50):
            gradient = torch.empty(1000)
            recorder.mark_gradient(gradient)
            del gradient
            kept = torch.empty(1000)
            assert recorder.live == 4000
            del kept


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
    assert children_with("trace_process") == []


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("if model(batch).sum() > 0: return model(batch).mean()", "data_dependent"),
        ("raise KeyError('a' * 5000 + chr(27))", "error"),
        ("torch.ones(1 << 33)", "memory"),
        ("open(sys.argv[1], 'w').write('{\"trace\": {\"peak\": -1}}') and os._exit(0)", "crashed"),
    ],
)
def test_code_that_cannot_be_traced_costs_a_study_its_predictions_alone(
    install: Install, tmp_path: Path, statement: str, code: str
) -> None:
    failure = forked_children.traced(install(statement), TASK, tmp_path)
    assert isinstance(failure, TraceFailure)
    assert failure.code == code, failure
    assert "\x1b" not in failure.message and f"({code})" in failure.note


def test_a_trace_ends_with_the_process_that_started_it_and_leaves_no_files(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    spec = install(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(1000)")
    texts = spec.model_dump_json(), TASK.model_dump_json()
    owner = preloaded_forks.fork(_trace_cold, *texts, tmp_path, output=tmp_path / "owner.log")
    try:
        pid = int(_wait_for(lambda: (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""))
    finally:
        owner.kill()
        owner.join()
    _wait_for(lambda: "" if psutil.pid_exists(pid) else "ended")
    assert list((tmp_path / "temporary").iterdir()) == []


def _trace_cold(spec: str, workload: str, folder: Path) -> None:
    sys.path.insert(0, str(folder))
    # What this process was forked from has asked for another folder.
    tempfile.tempdir = None
    forked_children.trace(spec, workload)


@pytest.mark.parametrize(("end", "code"), [("os._exit(0)", "crashed"), ("time.sleep(1000)", "time")])
def test_what_the_code_started_ends_with_its_trace(install: Install, tmp_path: Path, end: str, code: str) -> None:
    """Code that hangs is ended in time."""
    begin, start = time.monotonic(), "import subprocess; child = subprocess.Popen(['sleep', '1000'])"
    pids = f"open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')"
    failure = forked_children.traced(install(f"{start}; {pids}; {end}"), TASK, tmp_path, limit_s=5)
    assert isinstance(failure, TraceFailure) and failure.code == code
    assert time.monotonic() - begin < 25
    tracing, started = map(int, (tmp_path / "pids").read_text().split())
    assert not psutil.pid_exists(tracing)
    try:
        _wait_for(lambda: "" if psutil.pid_exists(started) else "ended", patience_s=5)
    finally:
        if psutil.pid_exists(started):
            psutil.Process(started).kill()


def _wait_for(text: Callable[[], str], patience_s: float = 240.0) -> str:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if found_text := text():
            return found_text
        time.sleep(0.05)
    raise AssertionError(f"nothing came within {patience_s} s")


def test_a_trace_never_raises_the_memory_that_its_starter_was_given(tmp_path: Path) -> None:
    """Only root may raise a hard limit: anybody else's trace would end before it began."""
    assert forked_children.outcome_of(_limit_within, 3 << 29, folder=tmp_path) == "True"


def _limit_within(given: int) -> str:
    resource.setrlimit(resource.RLIMIT_DATA, (given, given))
    trace_process.limit_memory()
    return str(resource.getrlimit(resource.RLIMIT_DATA)[1] <= given)
