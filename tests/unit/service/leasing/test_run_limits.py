"""Time limit of a leased run: the operator's limit, and three times the predicted steps."""

import pytest

from shardtune.api_schemas.trials.leases import ModelSummaryTask, ResumeTask
from shardtune.api_schemas.trials.measurements import Measurement, Memory
from shardtune.api_schemas.trials.predictions import TrialPrediction
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.tables.trials import RunRow, TrialRow
from shardtune.service.leasing import run_limits
from shardtune.service.settings import Settings
from tests.support.workers.worker_fakes import make_task

SETTINGS = Settings(run_deadline_s=300, no_progress_s=60)
TASK = make_task()


def a_run(step_s: float | None, measured_s: float | None = None) -> RunRow:
    """Limit of a trial with this predicted, and perhaps measured, step time."""
    rate = None if step_s is None else TASK.workload.tokens_per_step / step_s / TASK.cluster.world_size
    speed = dict.fromkeys(("tokens_per_s_per_gpu", "low_tokens_per_s_per_gpu", "high_tokens_per_s_per_gpu"), rate)
    memory = dict.fromkeys(("memory_gib", "low_memory_gib", "high_memory_gib"), 1.0)
    calibrated = {"memory_calibrated_on": 0, "speed_calibrated_on": 0}
    trial = TrialRow(prediction=TrialPrediction.model_validate({**speed, **memory, **calibrated}), runs=[])
    if measured_s is not None:
        trial.runs.append(RunRow(purpose=RunPurpose.SEARCH, measurement=measurement(measured_s)))
    return RunRow(purpose=RunPurpose.VALIDATION, trial=trial)


def measurement(step_s: float) -> Measurement:
    return Measurement(
        tokens_per_s_per_gpu=1.0,
        step_time_s=step_s,
        step_time_half_width_s=0,
        memory=Memory(peak_allocated_gib=1),
        wrap_time_s=None,
        warmup_steps=1,
        measured_steps=3,
        window_step_times_s=(step_s, step_s),
        trajectory=(),
        losses=(),
        gradient_accumulation=1,
        elapsed_s=1,
    )


def test_steps_of_45_seconds_get_the_time_they_need() -> None:
    limits = run_limits.of(SETTINGS, a_run(45.0), TASK)
    steps = TASK.plan.parity_steps + TASK.plan.max_warmup_steps + TASK.plan.min_windows
    assert limits == pytest.approx((300 + 3 * 45 * steps, 60 + 3 * 45))


def test_what_was_measured_counts_where_nothing_was_predicted() -> None:
    assert run_limits.of(SETTINGS, a_run(45.0, measured_s=2.0), TASK).no_progress_s == pytest.approx(60 + 3 * 45)
    assert run_limits.of(SETTINGS, a_run(None, measured_s=2.0), TASK).no_progress_s == pytest.approx(66)
    restart = run_limits.of(SETTINGS, a_run(None, measured_s=2.0), ResumeTask(trial=TASK))
    assert restart == pytest.approx((300 + 3 * 2 * (8 + 2 * 5), 66))


def test_a_resume_check_has_time_to_save_and_load_its_checkpoint_on_a_slow_disk() -> None:
    check, parameters = ResumeTask(trial=TASK), 8_000_000_000
    without = run_limits.of(SETTINGS, a_run(5.0), check).deadline_s
    limits = run_limits.of(SETTINGS, a_run(5.0), check, parameters)
    assert limits.deadline_s - without == pytest.approx(2 * 16 * parameters / 100e6)
    assert limits.no_progress_s == pytest.approx(75)
    assert run_limits.of(SETTINGS, a_run(5.0), TASK, parameters) == run_limits.of(SETTINGS, a_run(5.0), TASK)


def test_a_sustained_run_has_time_for_its_seconds_of_steps() -> None:
    task = TASK.model_copy(update={"plan": TASK.plan.model_copy(update={"max_measure_s": 1200.0})})
    short, sustained = a_run(5.0), a_run(5.0)
    sustained.purpose = RunPurpose.SUSTAINED
    assert run_limits.of(SETTINGS, sustained, task).deadline_s == run_limits.of(SETTINGS, short, task).deadline_s + 1200
    assert run_limits.foreseen_s(sustained, task) == run_limits.foreseen_s(short, task) + 1200
    for run in (short, sustained):
        assert run.trial is not None
        run.trial.runs.append(RunRow(purpose=RunPurpose.SEARCH, measurement=measurement(5.0)))
    assert run_limits.foreseen_s(sustained, task) == run_limits.foreseen_s(short, task) + 1200


def test_a_job_near_its_end_foresees_the_checkpoint_too() -> None:
    check = ResumeTask(trial=TASK)
    extra_s = run_limits.foreseen_s(a_run(5.0), check, 8_000_000_000) - run_limits.foreseen_s(a_run(5.0), check)
    assert extra_s == pytest.approx(512)


def test_a_run_that_nobody_can_foresee_keeps_to_the_operator_s_limits() -> None:
    assert run_limits.of(SETTINGS, a_run(None), TASK) == (300, 60)
    model_summary = ModelSummaryTask(model=TASK.model, workload=TASK.workload)
    assert run_limits.of(SETTINGS, RunRow(purpose=RunPurpose.MODEL_SUMMARY), model_summary) == (300, 60)
