"""End of a search: the budget of trials, and the gain of a declared run."""

import pytest

from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.studies.study_changes import Extension
from shardtune.api_schemas.trials.trial import TrialReason, TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.search.stopping import extend_budget, no_gain_reason, stop_reason
from tests.support.values.tuner_inputs import complete, infeasible
from tests.unit.tuner.verdict.backend_configs import DDP

FREE = Budget()


def run(speeds, origin="sampler"):
    return [complete(i, DDP, speed, origin) for i, speed in enumerate(speeds)]


def test_exactly_the_trials_of_the_budget_are_run():
    assert stop_reason(run([100] * 19), Budget(max_trials=20), 0, 0) is None
    end = stop_reason(run([100] * 20), Budget(max_trials=20), 0, 0)
    assert end.code is StudyReasonCode.TRIALS_USED and "20 trials" in end.text
    alone = stop_reason(run([100]), Budget(max_trials=1), 0, 0)
    assert alone.text == "the only trial of the budget is used"


def test_the_default_budget_ends_when_gain_dries_up_after_twelve_trials():
    assert stop_reason(run([100] * 11), FREE, 0, 0) is None
    assert stop_reason(run([100] * 12), FREE, 0, 0).code is StudyReasonCode.LITTLE_GAIN
    assert stop_reason(run([100] * 11 + [102]), FREE, 0, 0) is None
    assert stop_reason(run([100] * 4 + [102] + [90] * 8), FREE, 0, 0) is not None


def test_the_default_budget_ends_at_forty_whatever_happens():
    improving = run([100 * 1.1**i for i in range(40)])
    assert stop_reason(improving[:39], FREE, 0, 0) is None
    assert stop_reason(improving, FREE, 0, 0) is not None


def gaining(gain, gpu_seconds=7200.0):
    speeds = dict.fromkeys(("tokens_per_s_per_gpu", "low_tokens_per_s_per_gpu", "high_tokens_per_s_per_gpu"), 100.0)
    chances = {"probability_faster": 0.5, "probability_infeasible": 0.0}
    return TrialReason(expected_gain=gain, expected_gpu_seconds=gpu_seconds, tests="", **chances, **speeds)


def test_a_declared_run_lets_the_search_go_on_while_a_trial_saves_more_of_it_than_it_takes():
    """Two GPU-hours a trial: of 1,000 planned a gain of 0.25 % saves 2.5, of 100 a gain of 1.5 % saves 1.5."""
    much, little, completed = Budget(planned_gpu_hours=1000), Budget(planned_gpu_hours=100), run([100] * 20)
    assert no_gain_reason(gaining(0.0025), completed, FREE) is not None
    assert no_gain_reason(gaining(0.0025), completed, much) is None and stop_reason(completed, much, 0, 0) is None
    assert no_gain_reason(gaining(0.015), completed, FREE) is None
    end = no_gain_reason(gaining(0.015), completed, little)
    assert end.code is StudyReasonCode.COSTS_MORE
    assert "save 1.5 of the 100 GPU-hours planned, less than the 2 that it takes, after 20 trials" in end.text
    assert no_gain_reason(gaining(0.0), completed[:5], little) is None
    assert (
        "less than 1%" in no_gain_reason(None, completed, much).text and no_gain_reason(None, completed, FREE) is None
    )


def test_a_declared_run_and_a_number_of_trials_exclude_each_other():
    with pytest.raises(ValueError, match=r"planned_gpu_hours \(5\).*max_trials \(3\).*leave one out"):
        Budget(planned_gpu_hours=5, max_trials=3)
    more = extend_budget(Budget(planned_gpu_hours=5), Extension(add_trials=3), 7, 0.0, 0.0)
    assert more.max_trials == 10 and more.planned_gpu_hours is None


def test_nothing_feasible_yet_is_no_reason_to_stop_early():
    assert stop_reason([infeasible(i, DDP) for i in range(20)], FREE, 0, 0) is None


def test_running_and_failed_trials_do_not_count_as_lack_of_gain():
    idle = [Observation(i, DDP, "sampler", TrialState.FAILED) for i in range(8, 20)]
    assert stop_reason(run([100] * 8) + idle, FREE, 0, 0) is None


@pytest.mark.parametrize(
    ("budget", "code"),
    [
        (Budget(max_gpu_seconds=50), StudyReasonCode.GPU_SECONDS_USED),
        (Budget(max_wall_seconds=50), StudyReasonCode.WALL_SECONDS_USED),
    ],
)
def test_a_spent_budget_is_named(budget, code):
    end = stop_reason(run([1]), budget, 60, 60)
    assert end.code is code and "50" in end.text and end.sentence.endswith(" (60)")


def test_a_limit_that_was_overrun_is_extended_from_what_is_spent():
    budget, more = Budget(max_gpu_seconds=60), Extension(add_gpu_seconds=120)
    assert extend_budget(budget, more, 8, 40.0, 0.0).max_gpu_seconds == 180
    assert extend_budget(budget, more, 8, 66.0, 0.0).max_gpu_seconds == 186
