"""A study plans no run that would exceed its limits of GPU-seconds and time, and one without limits is planned as ever."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.budget import FEWEST_PAIRS, Budget
from shardtune.api_schemas.studies.reasons import StudyReason, StudyReasonCode
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.service.planning import study_plan
from shardtune.service.planning.final_steps import budget_for_pairs
from shardtune.service.planning.planner_cache import PlannerCache
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.planning.study_steps import Complete, NewResumeRun, NewValidationRun, StartFinalComparison, Step
from shardtune.tuner.verdict.budget_left import StudySpent
from shardtune.tuner.verdict.comparison_blocks import ValidationRun
from tests.support.values.synthetic_studies import CPU, study_of
from tests.support.values.tuner_inputs import TINY, complete, measured

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
STRATEGIES = (DdpConfig(), ZeroConfig(stage=2), Fsdp2Config(dp_shard=2))
RUN_S, RUN_GPU_S = 5.0, 10.0
"""Seconds and GPU-seconds of every run, on two ranks."""


def searched(
    speeds: Sequence[float], has_baseline: bool = True, *, spent: float = 0.0, **budget: float
) -> StudySnapshot:
    """A study whose search has ended; without resume check."""
    study, history = study_of(), []
    for number, speed in enumerate(speeds):
        config = TrialConfig(strategy=STRATEGIES[number % 3], micro_batch=1 + number // 3)
        origin = "baseline" if has_baseline and number == 0 else "default" if number < 2 else "sampler"
        history.append(complete(number, config, speed, origin))
    limits = Budget.model_validate({"max_trials": len(speeds), "resume_check": False} | budget)
    return StudySnapshot(
        study_id=study.study_id, version=1, state=StudyState.RUNNING, phase=StudyPhase.SEARCH,
        spec=study.spec.model_copy(update={"budget": limits}), cluster=CPU,
        baseline=history[0].config if has_baseline else None, model_summary=TINY, notes=(), gpu_seconds=spent,
        started_at=NOON, final_comparison=None, history=tuple(history), rejected=(), validation_runs=(),
        final_comparison_cost=(0, 0.0), has_waiting_run=False, has_open_run=False,
    )  # fmt: skip


def plan(snapshot: StudySnapshot) -> Step:
    now = NOON + timedelta(seconds=snapshot.gpu_seconds / 2)
    return study_plan.plan_next_step(snapshot, PlannerCache(), now, may_ask=False)


def played(snapshot: StudySnapshot) -> tuple[list[Step], StudySnapshot, StudyResult]:
    """The steps of a study from the end of its search to its result. Each run shows the trial's speed."""
    steps = list[Step]()
    while True:
        steps.append(step := plan(snapshot))
        match step:
            case StartFinalComparison():
                snapshot = replace(snapshot, phase=StudyPhase.FINAL_COMPARISON, final_comparison=step.final_comparison)
            case NewValidationRun():
                snapshot = with_run(snapshot, step)
            case Complete():
                return steps, snapshot, step.result
            case _:
                raise AssertionError(step)


def with_run(snapshot: StudySnapshot, step: NewValidationRun) -> StudySnapshot:
    trial = snapshot.history[step.trial_number]
    assert trial.measurement is not None
    speed = trial.measurement.tokens_per_s_per_gpu
    history = list(snapshot.history)
    history[trial.number] = replace(trial, validation_runs=(*trial.validation_runs, measured(speed)))
    added = ValidationRun(trial.number, step.comparison_block, "w", speed)
    return replace(
        snapshot,
        history=tuple(history),
        validation_runs=(*snapshot.validation_runs, added),
        gpu_seconds=snapshot.gpu_seconds + RUN_GPU_S,
    )


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from((50.0, 95.0, 100.0, 105.0, 150.0)), min_size=2, max_size=9),
    st.booleans(),
    st.integers(0, 45),
    st.booleans(),
)
def test_no_run_exceeds_a_limit_and_the_fewest_pairs_run_where_they_fit(
    speeds: list[float], has_baseline: bool, runs: int, is_wall: bool
) -> None:
    limit = {"max_wall_seconds": 1 + runs * RUN_S} if is_wall else {"max_gpu_seconds": 1 + runs * RUN_GPU_S}
    _, snapshot, result = played(searched(speeds, has_baseline, **limit))
    assert snapshot.gpu_seconds <= runs * RUN_GPU_S
    # Every run shows the same speeds, so that the fewest pairs settle any comparison.
    assert result.verdict is not Verdict.UNDECIDED or not has_baseline or runs < 2 * FEWEST_PAIRS


@pytest.mark.parametrize("has_baseline", [False, True])
def test_a_limit_that_is_far_away_and_none_plan_the_same_steps(has_baseline: bool) -> None:
    speeds = (100.0, 98.0, 130.0, 125.0, 131.0, 128.0, 90.0)
    free = played(searched(speeds, has_baseline))
    assert played(searched(speeds, has_baseline, max_gpu_seconds=1e9, max_wall_seconds=1e9))[0] == free[0]


def test_a_gain_that_the_rest_of_the_budget_can_show_is_confirmed() -> None:
    limit = 3 * RUN_GPU_S + 2 * FEWEST_PAIRS * RUN_GPU_S
    _, snapshot, result = played(searched((100.0, 60.0, 150.0), spent=3 * RUN_GPU_S, max_gpu_seconds=limit))
    assert result.verdict is Verdict.CONFIRMED and snapshot.gpu_seconds == limit
    assert not any("max_gpu_seconds" in note for note in result.notes)


def test_pairs_that_no_longer_fit_leave_the_verdict_undecided_and_it_says_why() -> None:
    _, snapshot, result = played(searched((100.0, 60.0, 150.0), spent=30.0, max_gpu_seconds=82.0))
    assert result.verdict is Verdict.UNDECIDED and snapshot.gpu_seconds == 70.0
    assert result.undecided is not None and (result.undecided.pairs, result.undecided.more_pairs) == (2, 5)
    (note,) = (note for note in result.notes if "max_gpu_seconds" in note)
    assert "budget.max_gpu_seconds (82) leaves 12 GPU-seconds, and a pair takes about 20" in note
    assert "added pairs raise this limit" in note


def test_candidates_that_cannot_all_be_compared_are_left_out_before_any_pair() -> None:
    """The fastest runs in pairs: choosing among all would have taken what the pairs need."""
    speeds, limit = (100.0, 98.0, 130.0, 128.0, 131.0, 127.0), 150.0
    (started, *_), _, result = played(searched(speeds, max_gpu_seconds=limit))
    assert isinstance(started, StartFinalComparison) and started.final_comparison.candidates == (4,)
    assert result.verdict is Verdict.CONFIRMED and result.best.trial_number == 4
    assert any("its 3 slowest candidates did not run again" in note for note in result.notes)


def test_a_budget_that_is_used_up_before_the_challenger_is_known_names_the_fastest() -> None:
    _, snapshot, result = played(searched((100.0, 99.0, 130.0), has_baseline=False, spent=30.0, max_gpu_seconds=30.0))
    assert (result.verdict, snapshot.validation_runs) == (Verdict.UNDECIDED, ())
    assert (result.baseline.trial_number, result.candidate and result.candidate.trial_number) == (0, 2)


def test_the_search_ends_once_the_rest_is_needed_and_not_before_there_is_something_to_compare() -> None:
    """Three runs took 30 GPU-seconds; the next trial takes 10, and 14 validation runs 140."""

    def reason(spent: float, trials: int = 3, **limits: float) -> StudyReason | None:
        snapshot = searched((100.0, 60.0, 150.0)[:trials], True, spent=spent, max_trials=20, **limits)
        return study_plan.why_rest_is_kept(snapshot, StudySpent(spent, spent / 2))

    assert reason(30.0) is None and reason(30.0, max_gpu_seconds=180.0) is None
    kept = reason(30.0, max_gpu_seconds=179.0)
    assert kept is not None and kept.code is StudyReasonCode.GPU_SECONDS_USED
    assert kept.text == "the rest of budget.max_gpu_seconds (179) is kept for the final comparison"
    assert "139 GPU-seconds are left, and 14 validation runs" in kept.details and "about 140" in kept.details
    late = reason(30.0, max_wall_seconds=89.0)
    assert late is not None and late.code is StudyReasonCode.WALL_SECONDS_USED
    assert reason(30.0, max_wall_seconds=90.0) is None
    assert reason(10.0, trials=1, max_gpu_seconds=20.0) is None


def test_trials_that_run_are_counted_before_the_next_one() -> None:
    snapshot = searched((100.0, 60.0, 150.0), spent=30.0, max_trials=20, max_gpu_seconds=180.0)
    running = replace(snapshot.history[1], number=3, state=TrialState.RUNNING, measurement=None)
    snapshot = replace(snapshot, history=(*snapshot.history, running))
    assert study_plan.why_rest_is_kept(snapshot, StudySpent(30.0, 0.0)) is not None


def test_the_resume_check_has_room_and_is_left_out_once_the_limit_is_reached() -> None:
    snapshot = searched((100.0, 60.0, 150.0), spent=30.0, max_gpu_seconds=90.0, resume_check=True)
    step = plan(snapshot)
    assert isinstance(step, StartFinalComparison)
    snapshot = replace(snapshot, phase=StudyPhase.FINAL_COMPARISON, final_comparison=step.final_comparison)
    while isinstance(step := plan(snapshot), NewValidationRun):
        snapshot = with_run(snapshot, step)
    assert isinstance(step, NewResumeRun) and snapshot.gpu_seconds == 70.0, "two runs are kept for it"
    late = plan(replace(snapshot, gpu_seconds=90.0))
    assert isinstance(late, Complete) and late.result.resume_check is not None
    assert late.result.resume_check.reason == "budget.max_gpu_seconds (90) is used up"


def test_added_pairs_raise_the_limits_by_what_they_should_take_and_one_to_spare() -> None:
    _, snapshot, _ = played(searched((100.0, 60.0, 150.0), spent=30.0, max_gpu_seconds=82.0))
    budget, field = snapshot.spec.budget, snapshot.final_comparison
    assert field is not None
    assert budget_for_pairs(snapshot, field, budget, 5, StudySpent(70.0, 35.0)).max_gpu_seconds == 70.0 + 6 * 20.0
    assert budget_for_pairs(snapshot, field, Budget(), 5, StudySpent(70.0, 35.0)) == Budget()
    ample = Budget(max_gpu_seconds=1e6, max_wall_seconds=40.0)
    raised = budget_for_pairs(snapshot, field, ample, 5, StudySpent(70.0, 35.0))
    assert (raised.max_gpu_seconds, raised.max_wall_seconds) == (1e6, 35.0 + 6 * 10.0)


def test_pairs_that_were_added_before_and_have_not_run_keep_their_room() -> None:
    _, snapshot, _ = played(searched((100.0, 60.0, 150.0), spent=30.0, max_gpu_seconds=82.0))
    assert snapshot.final_comparison is not None
    # Two pairs ran; five were added before, and five are added now.
    field = replace(snapshot.final_comparison, fewest_pairs=12)
    raised = budget_for_pairs(snapshot, field, snapshot.spec.budget, 5, StudySpent(70.0, 35.0))
    assert raised.max_gpu_seconds == 70.0 + 11 * 20.0


def test_time_to_wait_for_quiet_raises_the_limit_on_time_alone() -> None:
    study = searched((100.0, 60.0, 150.0), spent=30.0, max_gpu_seconds=82.0, max_wall_seconds=41.0)
    _, snapshot, _ = played(study)
    snapshot = replace(snapshot, phase=StudyPhase.DONE)
    assert snapshot.final_comparison is not None
    raised = budget_for_pairs(
        snapshot, snapshot.final_comparison, snapshot.spec.budget, 5, StudySpent(70.0, 35.0), wait_s=600.0
    )
    assert (raised.max_gpu_seconds, raised.max_wall_seconds) == (190.0, 35.0 + 60.0 + 600.0)


def test_a_default_that_runs_again_is_no_candidate_that_was_left_out() -> None:
    speeds = (100.0, 99.0, 130.0)
    snapshot = searched(speeds, has_baseline=False, max_gpu_seconds=60.0)
    (started, *_), _, result = played(snapshot)
    assert isinstance(started, StartFinalComparison) and 1 in started.final_comparison.members
    assert not any("did not run again" in note for note in result.notes)
