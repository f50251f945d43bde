"""Whole steps after the verdict: which trials run them, and that a wrong extension decides nothing."""

from dataclasses import replace
from typing import Any

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.study_result import FinalComparison, Speedup, StudyResult, Verdict
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.short_steps import ShortStepTimes
from shardtune.service.wording.study_words import undecided_text
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict import whole_steps
from shardtune.tuner.verdict.contenders import contender
from tests.support.values.tuner_inputs import complete, measured

SHORT = ShortStepTimes(parity_samples=16, parity_accumulation=2, accumulations=(2, 4), fewer_s=(1.0,), more_s=(2.0,))
BASELINE, FASTER = TrialConfig(strategy=DdpConfig()), TrialConfig(strategy=Fsdp2Config(dp_shard=2))
FIELD = Finalists(0, (1,), ())
DEFAULTS = Finalists(0, (1,), (), (0,))


def extended(speed: float) -> Measurement:
    return measured(speed).model_copy(update={"short_steps": SHORT, "gradient_accumulation": 12})


def whole(speed: float, **changes: Any) -> Measurement:
    return measured(speed).model_copy(update={"gradient_accumulation": 12, **changes})


def history(baseline: Measurement | None = None, best: Measurement | None = None, spread: float = 0.0):
    """Trials whose paired runs were extended, with their runs of whole steps."""
    runs = {0: (100.0, baseline), 1: (130.0, best)}
    return [
        replace(
            complete(number, FASTER if number else BASELINE, speed),
            measurement=extended(speed),
            validation_runs=tuple(extended(speed * (1 + spread * side)) for side in (-1, 0, 1)),
            whole_step_run=run,
        )
        for number, (speed, run) in runs.items()
    ]


def confirmed(trials: list[Observation]) -> StudyResult:
    """Result as the pairs give it, of trial 1 over the baseline 0."""
    return StudyResult(
        best=contender(trials[1]),
        baseline=contender(trials[0]),
        speedup=Speedup(value=1.3, ci95=(1.29, 1.31), pairs=7),
        verdict=Verdict.CONFIRMED,
        final_comparison=FinalComparison(candidates=(1,), pairs=7, runs=14, gpu_seconds=1.0, ratios=(1.3,) * 7),
    )


def checked(trials: list[Observation], field: Finalists = FIELD) -> StudyResult:
    return whole_steps.checked(confirmed(trials), trials, field)


def test_winner_and_baseline_run_whole_steps_once_each():
    trials = history()
    assert whole_steps.due(confirmed(trials), trials) == 0
    trials = history(baseline=whole(100))
    assert whole_steps.due(confirmed(trials), trials) == 1
    trials = history(whole(100), whole(130))
    assert whole_steps.due(confirmed(trials), trials) is None


def test_a_study_of_whole_steps_runs_no_more_of_them():
    trials = [replace(trial, measurement=measured(100), validation_runs=(measured(100),)) for trial in history()]
    assert (
        whole_steps.due(confirmed(trials), trials) is None
        and whole_steps.checked(confirmed(trials), trials, FIELD).notes == ()
    )


def test_a_machine_too_busy_for_a_verdict_checks_no_extension():
    busy = confirmed(history()).model_copy(update={"verdict": Verdict.TOO_BUSY})
    assert whole_steps.due(busy, history()) is None


def test_the_answer_states_the_whole_steps_speed_and_by_how_much_the_extension_was_off():
    result = checked(history(whole(101), whole(129)))
    assert (result.baseline.tokens_per_s_per_gpu, result.best.tokens_per_s_per_gpu) == (101, 129)
    errors = [check.extension_error for check in result.whole_steps]
    assert errors == [pytest.approx(101 / 100 - 1), pytest.approx(129 / 130 - 1)]
    assert result.verdict is Verdict.CONFIRMED and result.speedup == confirmed(history()).speedup
    assert "trial 0 from 2 and 4 of 12 micro batches, 1.0 % above the whole step" in result.notes[0]


def test_an_extension_more_than_3_percent_off_leaves_the_users_baseline_and_no_verdict():
    result = checked(history(whole(100), whole(120)))
    assert result.verdict is Verdict.UNDECIDED and result.undecided is not None and result.undecided.more_pairs is None
    assert result.best.trial_number == 0 and result.candidate is not None and result.candidate.trial_number == 1
    assert undecided_text(result.undecided).endswith(
        "a study with budget.short_steps false times whole steps throughout"
    )
    assert "more than 3% apart" in result.notes[-1] and "budget.short_steps" in result.notes[-1]


def test_of_two_defaults_the_faster_one_stays_recommended():
    result = checked(history(whole(100), whole(120)), DEFAULTS)
    assert result.verdict is Verdict.UNDECIDED and result.best.trial_number == 1


def test_runs_that_vary_more_than_3_percent_do_not_make_an_extension_wrong():
    result = checked(history(whole(100), whole(124), spread=0.03))
    assert result.verdict is Verdict.CONFIRMED and all(check.is_confirmed for check in result.whole_steps)


def test_a_disturbed_run_of_whole_steps_decides_nothing():
    result = checked(history(whole(100), whole(60, disturbed="other programs")))
    assert result.verdict is Verdict.CONFIRMED and "(disturbed)" in result.notes[0]
    assert result.best.tokens_per_s_per_gpu == 130


def test_whole_steps_that_turn_the_order_leave_the_study_undecided():
    """Errors of less than 3 % on either side can hide a gain of less than 6 %."""
    trials = history(whole(130.5), whole(130))
    trials[0] = replace(trials[0], validation_runs=tuple(extended(127.5) for _ in range(3)))
    result = checked(trials)
    assert all(check.is_confirmed for check in result.whole_steps)
    assert result.verdict is Verdict.UNDECIDED and "before trial 1" in result.notes[-1]
