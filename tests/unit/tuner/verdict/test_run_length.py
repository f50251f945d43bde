"""A run is timed as precisely as its decision needs, and all arms of a block alike."""

import math
from dataclasses import replace

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.verdict import run_length
from shardtune.tuner.verdict.comparison_blocks import NextRun, ValidationRun
from tests.support.values.tuner_inputs import complete, infeasible

DDP = TrialConfig(strategy=DdpConfig())
PAIR = NextRun(0, 3, (0, 1))
PLAN = MeasurePlan(undecided_s=(1.0, 2.0), target_half_width=0.02)


def test_a_trial_that_cannot_become_a_finalist_may_end_early():
    assert run_length.search_range([]) is None
    assert run_length.search_range([infeasible(0, DDP)]) is None
    first = complete(0, DDP, 100)
    assert first.measurement is not None
    fastest, longest = run_length.search_range([complete(1, DDP, 50), first, infeasible(2, DDP)]) or (None, None)
    assert fastest == 0 and longest == pytest.approx(first.measurement.step_time_s / 0.9)


def test_what_cannot_win_sets_no_pace():
    """A trial whose numbers cannot be true, or which trains something else, would have all others timed too briefly."""
    honest, untrue = complete(0, DDP, 100), replace(complete(1, DDP, 5000), state=TrialState.INFEASIBLE)
    alone = run_length.search_range([honest])
    assert run_length.search_range([honest, untrue]) == alone
    assert run_length.search_range([honest, complete(2, DDP, 5000)], infeasible={2: "other losses"}) == alone


def test_arms_that_are_far_apart_are_told_apart_by_their_middle():
    low, high = run_length.block_range(PAIR, {0: 100.0, 1: 200.0}, [], 1000.0) or (0.0, 0.0)
    assert math.sqrt(low * high) == pytest.approx(math.sqrt(5 * 10)) and 5 < low < high < 10


def test_arms_that_are_near_each_other_lie_within_the_range():
    low, high = run_length.block_range(PAIR, {0: 100.0, 1: 105.0}, [], 1000.0) or (0.0, 0.0)
    assert low < 1000 / 105 < 10 < high


def test_one_disturbed_search_run_does_not_set_the_range_for_ever():
    fresh = [ValidationRun(1, block, "w", 102.0) for block in range(2)]
    assert run_length.block_range(PAIR, {0: 100.0, 1: 30.0}, fresh, 1000.0) == pytest.approx(
        run_length.block_range(PAIR, {0: 100.0, 1: 102.0}, [], 1000.0)
    )


def test_both_runs_of_a_pair_are_timed_by_the_same_rule():
    """Equal lengths are needed: else the second one's length would depend on the first one's luck, and the sign of a
    pair be no fair coin."""
    searched = {0: 100.0, 1: 150.0}
    before = run_length.block_range(PAIR, searched, [], 1000.0)
    assert (
        run_length.block_range(PAIR, searched, [ValidationRun(0, PAIR.comparison_block, "w", 20.0)], 1000.0)
        == before
        is not None
    )
    assert run_length.block_range(NextRun(0, 2, (0,)), searched, [], 1000.0) is None


@pytest.mark.parametrize(
    ("step_s", "half_width_s", "answered"),
    [(1.5, 0.02, True), (1.5, 0.1, False), (2.5, 0.4, True), (2.5, 0.6, False), (0.5, 0.4, True), (0.5, 0.6, False)],
    ids=["precise", "within", "slower", "perhaps slower", "faster", "perhaps faster"],
)
def test_timing_ends_outside_of_the_range(step_s: float, half_width_s: float, answered: bool) -> None:
    assert PLAN.is_precise_enough(step_s, half_width_s) is answered
