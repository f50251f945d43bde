"""The quiet test ends pairs early only on a quiet machine, with both orders, and seldom errs."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.tuner.verdict import paired_test, quiet_test, ranking
from shardtune.tuner.verdict.comparison_blocks import Pair, ValidationRun
from shardtune.tuner.verdict.final_comparison import ranking_state
from shardtune.tuner.verdict.run_load import RunLoad
from tests.support.values.tuner_inputs import complete, measured

QUIET = RunLoad(spread=0.004)
FIELD, SEARCHED = Finalists(0, (1,)), {0: 100.0, 1: 130.0}
DDP, FSDP2 = TrialConfig(strategy=DdpConfig()), TrialConfig(strategy=Fsdp2Config(dp_shard=2))


def pairs(ratios, loads=(QUIET, QUIET), orders=(True, False)):
    """Pairs with these ratios; the orders repeat."""
    return [Pair(math.log(ratio), loads, orders[at % len(orders)]) for at, ratio in enumerate(ratios)]


def play(gain, noise, load=QUIET, salt="study-1", **options):
    """Runs of a final comparison whose challenger is faster by `gain`, and its end."""
    draw, runs = random.Random(salt), []
    while (ask := ranking_state(FIELD, SEARCHED, runs, 24, salt, **options).next) is not None:
        speed = 100.0 * (1 + gain * ask.trial) * math.exp(draw.gauss(0, noise))
        runs.append(ValidationRun(ask.trial, ask.comparison_block, "w", speed, load=load))
    return runs, ranking_state(FIELD, SEARCHED, runs, 24, salt, **options)


def test_a_clear_gain_on_a_quiet_machine_takes_three_pairs():
    assert quiet_test.decide(pairs([1.30, 1.31, 1.30])) == "faster"
    interval = quiet_test.speedup(pairs([1.30, 1.31, 1.30]))
    assert 1.2 < interval.ci95[0] < interval.value < interval.ci95[1] < 1.4 and interval.pairs == 3
    counts = [len(play(0.3, 0.005, salt=f"{number}")[1].pairs) for number in range(40)]
    # Where the three orders are the same, as in a quarter of the studies, a later pair decides.
    assert min(counts) == 3 and max(counts) <= 7 and sum(counts) / len(counts) < 3.8


def test_no_gain_on_a_quiet_machine_ends_before_the_sign_test_could():
    runs, end = play(0.0, 0.003)
    assert end.is_settled_early and len(end.pairs) < 7 and len(runs) == 2 * len(end.pairs)
    assert quiet_test.decide(pairs([1.0, 1.002, 0.999])) == "not_shown"


def test_a_gain_that_a_study_must_find_is_not_given_up():
    assert quiet_test.decide(pairs([1.05, 1.02, 1.04])) == "open"
    assert quiet_test.decide(pairs([1.01, 0.97, 1.04])) == "open"


@pytest.mark.parametrize(
    ("loads", "orders", "why"),
    [
        ((RunLoad(), RunLoad()), (True, False), "the runs state no spread of their own"),
        ((QUIET, RunLoad()), (True, False), "one run states none"),
        ((RunLoad(True, 1.0, 0.004), QUIET), (True, False), "other programs disturbed a run"),
        ((QUIET, QUIET), (True,), "the challenger always ran first: drift may have helped it"),
        ((QUIET, QUIET), (False,), "the challenger always ran last"),
        ((QUIET, QUIET), (None,), "the order is not known"),
        ((RunLoad(spread=0.2), QUIET), (True, False), "the runs' own windows lie far apart"),
    ],
)
def test_pairs_that_are_not_certainly_quiet_wait_for_the_sign_test(loads, orders, why):
    assert quiet_test.decide(pairs([1.30, 1.31, 1.30], loads, orders)) == "open", why


def test_an_uneven_pair_leaves_the_decision_to_the_sign_test():
    assert quiet_test.decide(pairs([1.30, 1.31, 1.30]), uneven_pairs=1) == "open"


def test_fewer_than_three_and_more_than_six_pairs_are_not_judged():
    assert quiet_test.decide(pairs([1.3, 1.3])) == "open" and quiet_test.speedup(pairs([1.3] * 7)) is None


@given(st.lists(st.integers(-90, 90), min_size=3, max_size=6))
def test_the_interval_lies_above_one_exactly_when_the_quiet_test_says_faster(thousandths):
    quiet = pairs([1 + value / 1000 for value in thousandths])
    interval = quiet_test.speedup(quiet)
    assert (interval.ci95[0] > 1) == (quiet_test.decide(quiet) == "faster")
    assert interval.ci95[0] <= interval.value <= interval.ci95[1]


def ever_faster(draw_pair, studies=8_000):
    """Share of studies in which pairs drawn this way ever win early; orders are drawn at random."""
    draw, wins = random.Random(1), 0
    for _ in range(studies):
        drawn = [Pair(draw_pair(draw), (QUIET, QUIET), draw.random() < 0.5) for _ in range(6)]
        # An interval above no gain needs every pair to be won: the others need no look.
        is_won = min(pair.log_ratio for pair in drawn[:3]) > 0
        wins += is_won and any(quiet_test.decide(drawn[:count]) == "faster" for count in range(3, 7))
    return wins / studies


def test_equal_configurations_win_early_as_seldom_as_promised():
    assert ever_faster(lambda draw: draw.gauss(0, 0.03)) <= quiet_test.ERROR + 0.002


def test_runs_of_two_speeds_win_early_in_one_study_of_64_at_most():
    def pair(draw):
        return 0.2 * (draw.random() < 0.5) - 0.2 * (draw.random() < 0.5) + draw.gauss(0, 0.001)

    assert ever_faster(pair) <= 1 / 64 + 0.003


def test_the_first_run_of_each_pair_being_faster_never_wins_early():
    """A machine that slows down within each pair favours the trial that runs first."""
    draw = random.Random(2)
    for _ in range(200):
        drifting = [
            Pair(0.1 * (1 if first else -1), (QUIET, QUIET), first) for first in (draw.random() < 0.5 for _ in range(6))
        ]
        assert all(quiet_test.decide(drifting[:count]) != "faster" for count in range(3, 7))


def test_a_challenge_does_not_end_early():
    _, end = play(0.3, 0.005, may_end_early=False)
    assert not end.is_settled_early and len(end.pairs) == 7


def result_of(runs, end):
    """Result of a final comparison, from its runs and its end."""
    speeds = {trial: [run.tokens_per_s_per_gpu for run in runs if run.trial == trial] for trial in (0, 1)}
    history = [
        replace(trial, validation_runs=tuple(measured(speed) for speed in speeds[trial.number]))
        for trial in (complete(0, DDP, 100, "baseline"), complete(1, FSDP2, 130))
    ]
    return ranking.result(history, FIELD, end, (len(runs), 10.0))


def test_an_answer_that_came_early_has_the_interval_of_the_quiet_test_and_says_so():
    runs, end = play(0.3, 0.005)
    result = result_of(runs, end)
    assert result.verdict is Verdict.CONFIRMED and result.best.trial_number == 1
    assert result.speedup.pairs == len(end.pairs) < 7 and result.speedup.ci95[0] > 1
    assert "pairs were enough" in result.notes[-1]
    assert paired_test.speedup(end.log_ratios) is None


def test_the_reason_of_an_early_answer_is_its_interval_and_not_how_close_the_ratios_lie():
    """A study said "the spread is large" and "their ratios lie close together" of the same six pairs."""
    runs, end = play(0.3, 0.005)
    apart = tuple(pairs([1.83, 1.27, 1.58, 1.60, 1.51, 1.65]))
    assert quiet_test.decide(apart) == "faster"
    assert result_of(runs, replace(end, pairs=apart)).notes[-1] == (
        "6 pairs were enough: none of their runs was disturbed, and the whole interval of the speed-up lies above 1"
    )
    equal, none = play(0.0, 0.003)
    assert result_of(equal, none).notes[-1].endswith("and they rule out a gain of 5 %")


def test_throttled_runs_are_left_to_the_sign_test():
    throttled = RunLoad(spread=0.004, is_throttled=True)
    assert quiet_test.decide(pairs([1.30, 1.31, 1.30])) == "faster"
    assert quiet_test.decide(pairs([1.30, 1.31, 1.30], loads=(QUIET, throttled))) == "open"
    assert quiet_test.speedup(pairs([1.30, 1.31, 1.30], loads=(QUIET, throttled))) is None
