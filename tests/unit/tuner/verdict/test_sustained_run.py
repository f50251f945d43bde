"""Sustained run after the verdict: when it is due, how long it is timed, and what its speed says beside the comparison."""

from dataclasses import replace
from typing import Any

import pytest

from shardtune.api_schemas.machines.conditions import Conditions, DeviceSeen
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.verdicts import SustainedSpeed
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.short_steps import ShortStepTimes
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.service.wording.answers import sustained_speed
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict.budget_left import StudySpent
from shardtune.tuner.verdict.contenders import contender
from shardtune.tuner.verdict.winner import sustained_run
from shardtune.tuner.verdict.winner.sustained_run import SustainedObstacle, SustainedRun, SustainedRunDue
from tests.support.values.synthetic_studies import CPU, study_of
from tests.support.values.tuner_inputs import WORKLOAD, complete, gpus, measured

CONFIG = TrialConfig(strategy=DdpConfig())
SPEC = study_of().spec
NOTHING_SPENT = StudySpent(0.0, 0.0)
SPREAD = (99.0, 100.0, 101.0)


def gpu(clock: float, temperature: float) -> DeviceSeen:
    return DeviceSeen(
        uuid="GPU-1", memory_before_gib=0.0, throttled_fraction=0.0, power_capped_fraction=0.0, samples=10,
        sm_clock_mhz=clock, power_w=690.0, temperature_c=temperature,
    )  # fmt: skip


def a_run(speed: float, clock: float = 1700.0, temperature: float = 70.0) -> Measurement:
    return measured(speed).model_copy(update={"conditions": Conditions(devices=(gpu(clock, temperature),))})


def winner(*speeds: float) -> Observation:
    runs = tuple(a_run(speed, clock=1700.0 + at) for at, speed in enumerate(speeds))
    return replace(complete(0, CONFIG, 100.0), measurement=a_run(100.0), validation_runs=runs)


def result_for(best: Observation, verdict: Verdict = Verdict.CONFIRMED) -> StudyResult:
    return StudyResult(best=contender(best), baseline=contender(best), speedup=None, verdict=verdict)


def with_budget(**budget: Any) -> StudySpec:
    return SPEC.model_copy(update={"budget": SPEC.budget.model_copy(update=budget)})


def next_step(
    *runs: SustainedRun,
    spec: StudySpec = SPEC,
    cluster: Cluster = gpus(),
    spent: StudySpent = NOTHING_SPENT,
    best: Observation = winner(*SPREAD),
    obstacle: SustainedObstacle | None = None,
    verdict: Verdict = Verdict.CONFIRMED,
    compared_on: tuple[str, ...] = (),
) -> SustainedSpeed | SustainedRunDue | None:
    result = result_for(best, verdict)
    return sustained_run.next_step(result, best, spec, cluster, runs, spent, obstacle=obstacle, compared_on=compared_on)


def long_run(speeds: tuple[float, ...], **changes: Any) -> SustainedRun:
    """A run whose windows have these speeds."""
    windows = tuple(1 / speed for speed in speeds)
    step_s = sorted(windows)[len(windows) // 2]
    update = {
        "tokens_per_s_per_gpu": 1 / step_s, "step_time_s": step_s, "window_step_times_s": windows,
        "measured_steps": 12_000, "conditions": Conditions(devices=(gpu(1600.0, 84.0), gpu(1650.0, 80.0))),
    }  # fmt: skip
    return SustainedRun(0, TrialState.COMPLETE, measured(speeds[0]).model_copy(update=update | changes))


def speed_of(run: SustainedRun, **options: Any) -> SustainedSpeed:
    speed = next_step(run, **options)
    assert isinstance(speed, SustainedSpeed)
    return speed


@pytest.mark.parametrize(
    ("spec", "cluster", "verdict", "is_due"),
    [
        (SPEC, gpus(), Verdict.CONFIRMED, True),
        (SPEC, gpus(), Verdict.NOT_FASTER, True),
        (SPEC, gpus(), Verdict.TOO_BUSY, False),
        (SPEC, CPU, Verdict.CONFIRMED, False),
        (with_budget(sustained_run_s=3.0), CPU, Verdict.CONFIRMED, True),
        (with_budget(sustained_run_s=0.0), gpus(), Verdict.CONFIRMED, False),
    ],
    ids=["gpus", "baseline kept", "too busy", "cpu", "asked for", "switched off"],
)
def test_it_is_due_on_gpus_unless_the_study_says_otherwise(
    spec: StudySpec, cluster: Cluster, verdict: Verdict, is_due: bool
) -> None:
    step = next_step(spec=spec, cluster=cluster, verdict=verdict)
    assert isinstance(step, SustainedRunDue) if is_due else step is None


def test_a_cancelled_run_is_made_again_and_a_run_of_another_trial_does_not_count() -> None:
    assert isinstance(next_step(SustainedRun(0, TrialState.CANCELLED)), SustainedRunDue)
    assert isinstance(next_step(replace(long_run((90.0, 90.0)), trial=1)), SustainedRunDue)


@pytest.mark.parametrize(
    ("budget", "spent", "says"),
    [
        ({"max_gpu_seconds": 2000.0}, StudySpent(1500.0, 0.0), "leaves 500 GPU-seconds, and it takes about 1,000"),
        ({"max_wall_seconds": 600.0}, StudySpent(0.0, 500.0), "leaves 100 s, and it takes about 125 s"),
        ({"max_gpu_seconds": 900.0}, StudySpent(1500.0, 0.0), "leaves 0 GPU-seconds"),
    ],
)
def test_a_budget_without_room_leaves_it_out_and_the_answer_says_so(
    budget: dict[str, float], spent: StudySpent, says: str
) -> None:
    step = next_step(spec=with_budget(**budget), spent=spent)
    assert isinstance(step, SustainedSpeed) and step.outcome == "left_out" and step.reason is not None
    assert says in step.reason and step.tokens_per_s_per_gpu is None
    assert isinstance(next_step(spec=with_budget(**budget), spent=NOTHING_SPENT), SustainedRunDue) == (
        budget != {"max_gpu_seconds": 900.0}
    )


def test_with_an_obstacle_the_answer_comes_without_it_and_says_which() -> None:
    reasons = set()
    for obstacle in SustainedObstacle:
        for runs in ((), (SustainedRun(0, TrialState.WAITING),)):
            step = next_step(*runs, obstacle=obstacle)
            assert isinstance(step, SustainedSpeed) and step.outcome == "left_out" and step.reason
            reasons.add(step.reason)
    assert len(reasons) == len(SustainedObstacle)


def test_a_script_decides_itself_how_long_it_trains() -> None:
    model = SPEC.model.model_copy(update={"script": "mine"})
    step = next_step(spec=SPEC.model_copy(update={"model": model}))
    assert isinstance(step, SustainedSpeed) and step.outcome == "left_out" and "script" in (step.reason or "")


def test_its_speed_is_that_of_the_second_half_beside_clocks_and_temperatures() -> None:
    speed = speed_of(long_run((100.0, 100.0, 90.0, 90.0)))
    assert speed.tokens_per_s_per_gpu == pytest.approx(90.0) and speed.compared_tokens_per_s_per_gpu == 100.0
    assert speed.duration_s == pytest.approx(12_000 * (1 / 100 + 1 / 90) / 2) and speed.steps == 12_000
    assert (speed.sm_clock_mhz, speed.compared_sm_clock_mhz) == (1600.0, 1701.0)
    assert (speed.temperature_c, speed.compared_temperature_c, speed.power_w) == (84.0, 70.0, 690.0)


def test_it_is_slower_only_below_what_the_runs_of_the_comparison_allow() -> None:
    """Student's prediction interval of ln 99, ln 100 and ln 101: ± 4.303 × 0.0100 × sqrt(4/3), so from 95.14."""
    lowest = speed_of(long_run((95.5, 95.5))).lowest_tokens_per_s_per_gpu
    assert lowest == pytest.approx(95.14, abs=0.02)
    assert not speed_of(long_run((95.5, 95.5))).is_slower and speed_of(long_run((94.5, 94.5))).is_slower
    disturbed = speed_of(long_run((80.0, 80.0), disturbed="other programs kept 3 of 4 cores busy"))
    assert disturbed.is_disturbed and not disturbed.is_slower


@pytest.mark.parametrize(
    "cause", ["other programs kept 3 of 4 cores busy", "its timed windows lie apart by ±12% of the step time"]
)
def test_a_disturbed_run_names_the_recorded_cause_and_blames_nobody_else(cause: str) -> None:
    speed = speed_of(long_run((80.0, 80.0), disturbed=cause))
    (reason,) = sustained_speed.reasons(result_for(winner()).model_copy(update={"sustained": speed}))
    assert reason.text.startswith(f"the sustained run was disturbed ({cause}): ")
    assert reason.shown == "the sustained run was disturbed"
    assert speed_of(long_run((80.0, 80.0))).reason is None


def test_without_two_runs_to_compare_with_nothing_is_called_slower() -> None:
    alone = speed_of(long_run((50.0, 50.0)), best=winner())
    assert alone.lowest_tokens_per_s_per_gpu is None and not alone.is_slower
    assert alone.compared_sm_clock_mhz == 1700.0, "the search run"


def test_a_run_on_another_worker_is_not_called_slower() -> None:
    run = replace(long_run((90.0, 90.0)), worker="a")
    assert speed_of(run, compared_on=("a", "b")).is_slower and speed_of(run).is_slower
    elsewhere = speed_of(run, compared_on=("b",))
    assert not elsewhere.is_slower and elsewhere.lowest_tokens_per_s_per_gpu is None
    assert elsewhere.tokens_per_s_per_gpu == pytest.approx(90.0)


def test_extended_step_times_may_be_as_wrong_as_their_check_allows() -> None:
    short = ShortStepTimes(parity_samples=16, parity_accumulation=2, accumulations=(2, 4))
    runs = tuple(a_run(100.0).model_copy(update={"short_steps": short}) for _ in range(7))
    best = replace(winner(), validation_runs=runs)
    assert not speed_of(long_run((97.5, 97.5)), best=best).is_slower
    assert speed_of(long_run((96.5, 96.5)), best=best).is_slower


def test_a_failed_run_leaves_the_figures_of_the_comparison() -> None:
    failure = Failure(kind=FailureKind.OOM, message="no memory")
    failed = speed_of(SustainedRun(0, TrialState.INFEASIBLE, failure=failure))
    assert (failed.outcome, failed.reason) == ("failed", "oom: no memory")
    assert failed.compared_tokens_per_s_per_gpu == 100.0 and failed.tokens_per_s_per_gpu is None
    over = replace(long_run((100.0, 100.0)), state=TrialState.INFEASIBLE, failure=failure)
    assert speed_of(over).outcome == "failed", "a run over the memory limit has a measurement, too"


@pytest.mark.parametrize(("step_s", "window_steps"), [(0.002, 100), (0.5, 10), (20.0, 1), (None, 100)])
def test_its_plan_times_windows_of_some_seconds_until_the_time_is_over(step_s: float | None, window_steps: int) -> None:
    default = MeasurePlan(undecided_s=(1.0, 2.0), prune_above_s=3.0)
    plan = sustained_run.measure_plan(default, 120.0, step_s, None, CONFIG, WORKLOAD, gpus())
    assert (plan.window_steps, plan.max_measure_s, plan.min_windows) == (window_steps, 120.0, 2)
    assert plan.undecided_s is None and plan.prune_above_s is None and plan.parity_steps == default.parity_steps
    assert not plan.is_precise_enough(1.0, 1e-6) and plan.max_windows * window_steps * (step_s or 0.001) > 120


def test_a_study_of_short_steps_trains_whole_ones() -> None:
    config = TrialConfig(strategy=DdpConfig(), micro_batch=1)
    workload = WORKLOAD.model_copy(update={"global_batch": 1024})
    plan = sustained_run.measure_plan(MeasurePlan(), 120.0, 5.0, 16, config, workload, gpus())
    assert plan.short_steps is not None and plan.short_steps.accumulations is None and not plan.is_extended
