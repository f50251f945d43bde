"""Finalists of a search, and the verdict about the fastest of them."""

import math
from dataclasses import replace

import pytest

from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict import paired_test, parity, ranking, undecided
from shardtune.tuner.verdict.comparison_blocks import Pair
from shardtune.tuner.verdict.final_comparison import RankingState
from shardtune.tuner.verdict.run_load import UNDISTURBED, RunLoad
from tests.support.values.tuner_inputs import complete, infeasible, measured
from tests.unit.tuner.verdict.backend_configs import DDP, FSDP2, ZERO, ZERO_3

DISTURBED = RunLoad(is_disturbed=True)


def confirmed(obs, speeds):
    return Observation(
        obs.number, obs.config, obs.origin, obs.state, obs.measurement, None, tuple(map(measured, speeds))
    )


AGREED = parity.ParityGroups(reference=0, confirmed_by=1)


def answer(history, field, ratios, challenger):
    ranking_state = RankingState(field.baseline, challenger, tuple(Pair(math.log(ratio)) for ratio in ratios), None)
    return ranking.result(history, field, ranking_state, (20, 120.0))


def test_the_fastest_are_compared_with_the_fastest_documented_default():
    history = [complete(0, DDP, 120, "sampler"), complete(1, FSDP2, 100, "default"), complete(2, ZERO, 130)]
    field = ranking.pick_finalists(history, False, AGREED)
    assert (field.baseline, field.candidates) == (1, (2, 0))
    assert field.defaults == (1,)
    history[1], history[2] = confirmed(history[1], [100, 101, 99]), confirmed(history[2], [128, 131, 130])
    verdict_result = answer(history, field, [1.3] * 7, 2)
    assert verdict_result.verdict is Verdict.CONFIRMED and verdict_result.candidate is None
    assert "documented default" in verdict_result.notes[0]
    assert (verdict_result.best.trial_number, verdict_result.best.tokens_per_s_per_gpu, verdict_result.best.runs) == (
        2,
        130,
        3,
    )
    assert (
        verdict_result.best.spread,
        verdict_result.final_comparison.runs,
        verdict_result.final_comparison.gpu_seconds,
    ) == (
        (128, 131),
        20,
        120.0,
    )


def test_few_of_many_reach_the_final_comparison():
    history = [complete(i, DDP, 450 + i, "baseline" if i == 0 else "sampler") for i in range(23)]
    assert ranking.pick_finalists(history, True, AGREED).candidates == tuple(range(22, 2, -1))


def test_a_configuration_far_behind_in_the_search_is_no_finalist():
    history = [
        complete(i, DDP, speed, "baseline" if i == 0 else "sampler") for i, speed in enumerate((50, 89, 90, 100))
    ]
    assert ranking.pick_finalists(history, True, AGREED).candidates == (3, 2)


def test_a_challenger_that_does_not_pass_leaves_the_baseline_best():
    history = [complete(0, DDP, 100, "baseline"), complete(1, FSDP2, 110)]
    field = ranking.pick_finalists(history, True, AGREED)
    verdict_result = answer(history, field, [1.01, 0.99, 1.02, 0.98, 0.97, 1.01, 0.99], 1)
    assert verdict_result.verdict is Verdict.NOT_FASTER
    assert verdict_result.best == verdict_result.baseline and verdict_result.candidate.trial_number == 1
    assert verdict_result.speedup.ci95 == pytest.approx((0.97, 1.02))


def test_too_few_pairs_give_no_interval_and_say_so():
    history = [complete(0, DDP, 100, "baseline"), complete(1, FSDP2, 110)]
    verdict_result = answer(history, ranking.pick_finalists(history, True, AGREED), [1.3] * 6, 1)
    assert verdict_result.speedup is None and verdict_result.verdict is Verdict.UNDECIDED
    assert verdict_result.best == verdict_result.baseline and verdict_result.undecided.more_pairs == 1
    assert "too few pairs" in verdict_result.notes[-1]


def test_without_a_users_baseline_the_better_point_estimate_is_recommended_and_the_verdict_says_what_is_proved():
    """A tie must not go to whom chance made the baseline."""
    history = [complete(0, DDP, 100, "default"), complete(1, FSDP2, 98, "default"), complete(2, ZERO, 99)]
    field = ranking.pick_finalists(history, False, AGREED)
    assert (field.baseline, field.defaults) == (0, (0, 1))
    ahead = answer(history, field, [1.3, 0.8, 1.35, 1.3, 1.3, 1.7, 1.2], 1)
    assert (ahead.best.trial_number, ahead.baseline.trial_number, ahead.candidate) == (1, 0, None)
    assert ahead.verdict is Verdict.UNDECIDED and ahead.undecided.won_pairs == 6 and ahead.undecided.more_pairs == 3
    behind = answer(history, field, [0.9, 0.8, 0.95, 0.9, 1.01, 0.7, 0.9], 1)
    assert behind.best == behind.baseline and behind.verdict is Verdict.NOT_FASTER
    own = ranking.pick_finalists([complete(0, DDP, 100, "baseline"), complete(1, FSDP2, 98, "default")], True, AGREED)
    assert own.defaults == ()
    assert answer(history, own, [1.3, 0.8, 1.35, 1.3, 1.3, 1.7, 1.2], 1).best.trial_number == 0


def test_the_answer_stands_beside_each_default_at_its_best_micro_batch():
    wide = DDP.model_copy(update={"micro_batch": 8})
    history = [complete(0, DDP, 100, "default"), complete(1, wide, 165), complete(2, ZERO, 170)]
    verdict_result = answer(history, ranking.pick_finalists(history, False, AGREED), [1.7] * 7, 2)
    (beside,) = verdict_result.against_defaults
    assert (beside.trial_number, beside.micro_batches) == (1, (1, 8))
    assert verdict_result.speedup.value == pytest.approx(1.7) and beside.ratio == pytest.approx(170 / 165)


@pytest.mark.parametrize(
    ("ratios", "word", "more"),
    [
        ([1.3] * 7, Verdict.CONFIRMED, None),
        ([1.65, 1.7, 0.86, 1.5, 5.81, 2.0, 1.1], Verdict.UNDECIDED, 3),
        ([0.97, 1.01, 0.99, 1.02, 0.98, 1.0, 0.99], Verdict.NOT_FASTER, None),
        ([0.5, 1.9, 0.8, 0.9, 0.7, 1.3, 0.9], Verdict.UNDECIDED, None),
        ([1.3] * 5, Verdict.UNDECIDED, 2),
    ],
)
def test_three_verdicts(ratios, word, more):
    history = [complete(0, DDP, 100, "baseline"), complete(1, FSDP2, 110)]
    verdict_result = answer(history, ranking.pick_finalists(history, True, AGREED), ratios, 1)
    assert verdict_result.verdict is word and (verdict_result.undecided is not None) == (word is Verdict.UNDECIDED)
    assert verdict_result.undecided is None or verdict_result.undecided.more_pairs == more


CLEAR, LEVEL = [1.3] * 8, [0.97, 1.01, 0.99, 1.02, 0.98, 1.0, 0.99, 1.0]


@pytest.mark.parametrize(
    ("ratios", "disturbed_pairs", "word"),
    [
        (CLEAR, 0, Verdict.CONFIRMED),
        (CLEAR, 7, Verdict.CONFIRMED),
        (CLEAR, 8, Verdict.UNDECIDED),
        ([1.3] * 9 + [0.9], 9, Verdict.UNDECIDED),
        (LEVEL, 0, Verdict.NOT_FASTER),
        (LEVEL, 3, Verdict.NOT_FASTER),
        (LEVEL, 4, Verdict.UNDECIDED),
        (LEVEL, 8, Verdict.UNDECIDED),
    ],
)
def test_no_verdict_rests_on_disturbed_pairs_alone(ratios, disturbed_pairs, word):
    """The first pairs are disturbed. A gain needs an undisturbed pair that does not contradict, "not faster" a majority."""
    pairs = [
        Pair(math.log(ratio), (DISTURBED, UNDISTURBED) if at < disturbed_pairs else (UNDISTURBED, UNDISTURBED))
        for at, ratio in enumerate(ratios)
    ]
    speedup = paired_test.speedup([pair.log_ratio for pair in pairs])
    assert undecided.verdict(pairs, speedup) is word
    assert undecided.open_verdict(pairs).disturbed_pairs == disturbed_pairs


def disturb(obs):
    return replace(obs, measurement=obs.measurement.model_copy(update={"disturbed": "other programs"}))


def test_a_disturbed_search_run_is_held_to_other_disturbed_ones_when_finalists_are_picked():
    """The baseline and the fastest ran undisturbed; what was disturbed may be as fast, but not what is slow beside it."""
    undisturbed = [complete(0, DDP, 100, "baseline"), complete(1, FSDP2, 110), complete(2, ZERO, 60)]
    disturbed = [disturb(complete(number, ZERO_3, speed)) for number, speed in ((3, 60), (4, 55), (5, 50))]
    assert ranking.pick_finalists(undisturbed + disturbed, True, AGREED).candidates == (1, 3, 4)


def test_the_fastest_of_the_search_is_a_finalist_however_fast_the_baseline_was():
    history = [complete(0, DDP, 100, "baseline"), complete(1, FSDP2, 55), complete(2, ZERO, 54)]
    assert ranking.pick_finalists(history, True, AGREED).candidates == (1,)
    assert ranking.pick_finalists([history[0], *map(disturb, history[1:])], True, AGREED).candidates == (1, 2)


def test_a_baseline_that_did_not_fit_is_replaced_and_said_so():
    gone = Observation(
        0, ZERO, "baseline", TrialState.INFEASIBLE, failure=Failure(kind=FailureKind.OOM, message="out of memory")
    )
    field = ranking.pick_finalists([gone, complete(1, DDP, 90, "default"), complete(2, FSDP2, 95)], True, AGREED)
    assert field.baseline == 1
    assert "out of memory" in field.notes[0]


def test_a_single_feasible_configuration_has_nothing_to_beat():
    history = [complete(0, DDP, 100, "default"), infeasible(1, FSDP2)]
    field = ranking.pick_finalists(history, False, parity.ParityGroups(0, None))
    outcome = ranking.result_of_baseline(history, field)
    assert field.candidates == ()
    assert outcome.speedup is None and outcome.final_comparison is None
    assert outcome.verdict is Verdict.UNDECIDED and outcome.undecided is None


def test_no_winner_until_two_agree():
    field = ranking.pick_finalists([complete(0, DDP)], False, parity.ParityGroups(None, None))
    assert field.baseline is None and "no winner" in field.notes[0]


def test_a_trial_that_trains_something_else_never_wins():
    history = [complete(0, DDP, 100, "default"), complete(1, FSDP2, 90), complete(2, ZERO, 900)]
    parity_groups = parity.ParityGroups(0, 1, {2: "left"})
    assert ranking.pick_finalists(history, False, parity_groups).candidates == (1,)
    best = ranking.best_so_far(history, parity_groups)
    assert best is not None and best.trial_number == 0
