"""`explain` of a local study: the run under the profiler has the time limit of a trial, and a run that hangs is ended."""

import sys
from pathlib import Path

import pytest

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.leases import TraceTask, TrialTask
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.cli.errors import PlatformFailure
from shardtune.service.cli.explain import trace_run
from shardtune.service.leasing import run_limits
from shardtune.service.settings import Settings
from tests.support.values import synthetic_studies

STUDY = synthetic_studies.study_of(global_batch=16)
CONFIG = TrialConfig.model_validate({"strategy": {"kind": "ddp"}})
TASK = TrialTask(model=STUDY.spec.model, workload=STUDY.spec.workload, cluster=STUDY.cluster, config=CONFIG)
SETTINGS = Settings(run_deadline_s=200)


def deadline_of_steps(step_s: float | None) -> float:
    speed = None if step_s is None else TASK.workload.tokens_per_step / step_s / TASK.cluster.world_size
    trial = Trial(
        number=0, state="complete", origin="default", config=CONFIG, description="DDP", tokens_per_s_per_gpu=speed
    )
    return trace_run.deadline_s(SETTINGS, trial, TASK)


def test_the_run_has_the_time_of_a_trial_and_of_its_steps() -> None:
    task = TraceTask.of(TASK)
    assert deadline_of_steps(None) == run_limits.of_trace(SETTINGS, task, None).deadline_s == 200
    assert deadline_of_steps(10.0) == pytest.approx(200 + 3 * 10 * (task.warmup_steps + 3 * task.steps))


def test_the_worker_is_told_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_run, "MODULE", (sys.executable, "-c", "import sys; print(sys.argv); sys.exit(3)"))
    with pytest.raises(PlatformFailure, match=r"'--deadline-s', '123\.4'"):
        trace_run._run_profiled(TASK, 123.4, "trace", tmp_path, ())


def test_a_worker_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_run, "MODULE", (sys.executable, "-c", "import time; time.sleep(600)"))
    monkeypatch.setattr(trace_run, "_BESIDE_TRIAL_S", 0.5)
    with pytest.raises(PlatformFailure, match="under the profiler did not end within 1 s and was ended"):
        trace_run._run_profiled(TASK, 0.5, "trace", tmp_path, ())
