"""Sustained run on real ranks: steps are timed until its seconds are over, and its report stays within a report's limits."""

from statistics import fmean
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import MOST_TIMES
from shardtune.tuner.verdict.winner import sustained_run
from shardtune.workers.rank import main
from shardtune.workers.rank.training.step_runs import LoopRecord
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.ranks.tiny_tasks import tiny_task

pytestmark = pytest.mark.ranks

SECONDS = 2.0


def sustained(task: TrialTask, step_s: float) -> TrialTask:
    plan = sustained_run.measure_plan(task.plan, SECONDS, step_s, None, task.config, task.workload, task.cluster)
    return task.model_copy(update={"plan": plan})


def test_steps_are_timed_until_the_seconds_are_over(host: HostProcess) -> None:
    report = host.run(sustained(tiny_task({"kind": "ddp"}, parity_steps=2), step_s=0.05))[0]
    assert report.status == "complete", report.failure
    timed_s = report.measured_steps * fmean(report.window_step_times_s)
    window_s = report.measured_steps / len(report.window_step_times_s) * max(report.window_step_times_s)
    assert SECONDS <= timed_s <= SECONDS + window_s and not report.is_pruned
    assert len(report.losses) == min(MOST_TIMES, 2 + report.warmup_steps + report.measured_steps)


def test_a_report_keeps_the_losses_of_the_first_steps_and_counts_all_of_them() -> None:
    steps = MOST_TIMES + 1000
    nothing: Any = lambda: None  # noqa: E731
    loop = SimpleNamespace(
        outcome=LoopRecord(losses=[float(step) for step in range(steps)], window_step_times_s=[0.01] * 60),
        warmup_steps=0, short_step_times=nothing, compiled_frames=nothing, skipped=SimpleNamespace(count=0),
    )  # fmt: skip
    meter = SimpleNamespace(result=nothing)
    report = main._report(cast(Any, SimpleNamespace(rank=0)), cast(Any, loop), cast(Any, meter), wrap_time=None)
    assert report.measured_steps == steps
    assert report.losses == tuple(float(step) for step in range(MOST_TIMES))
