"""The sequential sign test is exact, survives a disturbed pair, and a final comparison follows from its stored runs."""

import math
import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtune.api_schemas.studies.budget import FEWEST_PAIRS
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.tuner.verdict import final_comparison, paired_test
from shardtune.tuner.verdict.comparison_blocks import NextRun, ValidationRun
from shardtune.tuner.verdict.final_comparison import ranking_state
from shardtune.tuner.verdict.run_load import RunLoad

UP, DOWN = math.log(1.4), math.log(0.5)


def pairs_needed(lost):
    return next(n for n, allowed in enumerate(paired_test.boundary()) if allowed >= lost)


def test_the_boundary_is_the_documented_one():
    assert [pairs_needed(lost) for lost in range(6)] == [7, 10, 13, 17, 20, 23]
    assert pairs_needed(0) == FEWEST_PAIRS


def test_fair_coins_win_as_seldom_as_promised_however_often_one_looks():
    """Counted over all sequences of 13 coins, against the boundary itself."""
    won = sum(
        any(paired_test.decide(coins[:n], 100) == "faster" for n in range(1, 14))
        for coins in product((1.0, -1.0), repeat=13)
    )
    assert 0.015 < won / 2**13 <= paired_test.ERROR * (1 - 0.5**3)


def test_one_disturbed_pair_does_not_lose_a_real_gain():
    ratios = [UP, UP, DOWN, UP, UP, UP, UP]
    assert paired_test.decide(ratios, 20) == "open"
    ratios += [UP] * 3
    assert paired_test.decide(ratios, 20) == "faster"
    interval = paired_test.speedup(ratios)
    assert interval.value == pytest.approx(1.4) and interval.ci95 == pytest.approx((1.4, 1.4)) and interval.pairs == 10


def test_a_final_comparison_ends_when_no_win_is_possible_but_not_before_there_is_an_interval():
    assert paired_test.decide([DOWN] * 6, 20) == "open"
    assert paired_test.speedup([DOWN] * 6) is None
    assert paired_test.decide([DOWN] * 7, 20) == "not_shown"
    assert paired_test.decide([UP, DOWN] * 4 + [DOWN], 20) == "not_shown"
    assert paired_test.decide([UP, DOWN] * 4 + [DOWN], 40) == "open"


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=40))
def test_the_interval_lies_above_one_exactly_when_the_test_says_faster(hundredths):
    ratios = [value / 100 for value in hundredths]
    interval = paired_test.speedup(ratios)
    assert (interval is not None and interval.ci95[0] > 1) == (paired_test.decide(ratios, 40) == "faster")
    assert interval is None or interval.ci95[0] <= interval.value <= interval.ci95[1]


MATCH = Finalists(0, (1, 2, 3, 4))


def play(speed, field=MATCH, salt="study-1", most_pairs=20, worker="w", searched=None):
    """Make every run a final comparison asks for; `speed` is a function of trial and run number."""
    runs, searched = [], dict.fromkeys(field.members, 100.0) | (searched or {})
    while (ask := ranking_state(field, searched, runs, most_pairs, salt).next) is not None:
        runs.append(ValidationRun(ask.trial, ask.comparison_block, worker, speed(ask.trial, len(runs))))
    return runs, ranking_state(field, searched, runs, most_pairs, salt)


def test_slower_candidates_are_eliminated_before_the_pairs():
    field = Finalists(0, tuple(range(1, 13)))
    runs, end = play(lambda trial, _: 100.0 + trial, field, searched={trial: 100.0 + trial for trial in range(1, 13)})
    assert end.challenger == 12 and len(end.log_ratios) == 7
    blocks = [{run.trial for run in runs if run.comparison_block == block} for block in range(11)]
    assert [len(block) for block in blocks] == [13, 9, 5, 5, *[2] * 7]
    assert blocks[1] == {0, *range(5, 13)} and blocks[2] == {0, 9, 10, 11, 12} and blocks[4] == {0, 12}
    assert len(runs) == final_comparison.max_runs(12, 7)


def test_candidates_far_behind_are_eliminated_before_their_round_is_due():
    searched = {trial: 50.0 * (trial + 1) for trial in range(10)}
    runs, end = play(lambda trial, _: 50.0 * (trial + 1), Finalists(0, tuple(range(1, 10))), searched=searched)
    assert {run.trial for run in runs if run.comparison_block == 1} == {0, 8, 9}
    assert end.challenger == 9 and {run.trial for run in runs if run.comparison_block > 2} == {0, 9}


def test_one_disturbed_run_does_not_eliminate_the_fastest():
    disturbed = iter([True])
    speed = lambda trial, _: 105.0 if trial == 9 and not next(disturbed, False) else 60.0 if trial == 9 else 100.0  # noqa: E731
    field = Finalists(0, tuple(range(1, 10)))
    searched = {trial: 105.0 if trial == 9 else 100.0 for trial in field.candidates}
    assert play(speed, field, searched=searched)[1].challenger == 9


def test_a_single_candidate_needs_no_screening():
    runs, end = play(lambda trial, _: 100.0 + trial, Finalists(3, (5,)))
    assert end.challenger == 5 and len(runs) == 14 == final_comparison.max_runs(1, 7)


def test_the_default_that_is_fastest_in_validation_runs_is_the_baseline_however_slow_its_search_run_was():
    field = Finalists(0, (4,), defaults=(0, 1, 2))
    speeds = {0: 688.0, 1: 1000.0, 2: 300.0, 4: 950.0}
    runs, end = play(lambda trial, _: speeds[trial], field, searched={0: 688.0, 1: 350.0, 2: 300.0, 4: 950.0})
    assert (end.baseline, end.challenger) == (1, 4)
    blocks = [{run.trial for run in runs if run.comparison_block == block} for block in (0, 1, 2)]
    assert blocks == [{0, 1, 2}, {0, 1}, {1, 4}]
    assert len(runs) <= final_comparison.max_runs(1, 20, defaults=3)


def test_a_candidate_that_is_far_slower_than_the_baseline_runs_in_one_pair_with_it():
    speed = lambda trial, _: 55.0 if trial == 1 else 100.0  # noqa: E731
    runs, end = play(speed, Finalists(0, (1,)), searched={0: 100.0, 1: 55.0})
    assert len(runs) == 2 and end.is_far_behind and end.next is None
    assert end.log_ratios == pytest.approx([math.log(0.55)])


def test_a_search_under_another_load_drops_no_candidate():
    """The candidate was searched beside other programs and the baseline was not; in pairs the candidate is faster."""
    runs, end = play(lambda trial, _: 130.0 if trial == 1 else 100.0, Finalists(0, (1,)), searched={0: 100.0, 1: 55.0})
    assert len(runs) == 14 and len(end.log_ratios) == 7 and not end.is_far_behind


def test_baselines_on_a_machine_that_became_quiet_do_not_end_the_comparison():
    """Of two defaults searched under load, the validation runs are twice as fast; the candidate's search run was not."""
    speeds = {0: 200.0, 1: 190.0, 4: 260.0}
    field = Finalists(0, (4,), defaults=(0, 1))
    _, end = play(lambda trial, _: speeds[trial], field, searched={0: 100.0, 1: 95.0, 4: 130.0})
    assert end.challenger == 4 and len(end.log_ratios) == 7 and min(end.log_ratios) > 0


def test_disturbed_pairs_show_no_candidate_far_behind():
    field, runs = Finalists(0, (1,)), []
    while (ask := ranking_state(field, {0: 100.0, 1: 55.0}, runs, 20, "s", disturbed_searches={1}).next) is not None:
        runs.append(
            ValidationRun(
                ask.trial, ask.comparison_block, "w", 55.0 if ask.trial else 100.0, load=RunLoad(True, cores_left=1.0)
            )
        )
    end = ranking_state(field, {0: 100.0, 1: 55.0}, runs, 20, "s", disturbed_searches={1})
    assert not end.is_far_behind and len(end.pairs) == 7 and all(pair.disturbed_runs == 2 for pair in end.pairs)


def test_a_disturbed_search_run_does_not_rank_a_candidate_last():
    """Its validation runs were the fastest of those under the same load."""
    speeds = {0: 50.0, 1: 50.0, 2: 60.0}
    searched, field, runs = {0: 100.0, 1: 100.0, 2: 55.0}, Finalists(0, (1, 2)), []
    while (ask := ranking_state(field, searched, runs, 20, "s", disturbed_searches={2}).next) is not None:
        runs.append(ValidationRun(ask.trial, ask.comparison_block, "w", speeds[ask.trial]))
    assert ranking_state(field, searched, runs, 20, "s", disturbed_searches={2}).challenger == 2


def test_a_final_comparison_ends_at_its_limit():
    noise = random.Random(1)
    runs, end = play(lambda *_: 100 + noise.random(), most_pairs=9)
    assert end.next is None and len(end.log_ratios) <= 9 and len(runs) <= final_comparison.max_runs(4, 9)
    assert final_comparison.max_runs(4, 9) == 2 * 5 + 2 * 9
    assert final_comparison.max_runs(30, 9) == 21 + 9 + 2 * 5 + 2 * 9


def test_the_order_within_pairs_is_drawn_anew_and_the_same_for_the_same_study():
    runs, _ = play(lambda *_: 100.0, most_pairs=40)
    again, _ = play(lambda *_: 100.0, most_pairs=40)
    other, _ = play(lambda *_: 100.0, most_pairs=40, salt="study-2")
    assert [run.trial for run in runs] == [run.trial for run in again] != [run.trial for run in other]
    pairs = [run.trial for run in runs[10:]]
    assert set(pairs[::2]) == set(pairs[1::2]) == {0, max(pairs)}


@pytest.mark.parametrize(("other", "block"), [("n1", 0), ("n2", 1)])
def test_a_block_on_other_hosts_of_the_same_worker_does_not_count(other, block):
    hosts = [frozenset(("n0", "n1")), frozenset(("n0", other))]
    runs = [ValidationRun(trial, 0, "w", 100.0, hosts[trial == 3]) for trial in (1, 2, 3)]
    next_run = ranking_state(MATCH, dict.fromkeys(MATCH.members, 100.0), runs, 20, "s").next
    assert isinstance(next_run, NextRun) and next_run.comparison_block == block


def test_a_block_of_two_workers_does_not_count():
    runs = [ValidationRun(trial, 0, "w" if trial < 3 else "v", 100.0) for trial in (1, 2, 3)]
    next_run = ranking_state(MATCH, dict.fromkeys(MATCH.members, 100.0), runs, 20, "s").next
    assert isinstance(next_run, NextRun) and next_run.comparison_block == 1


def test_blocks_that_never_count_end_too():
    runs: list[ValidationRun] = []
    while (ask := ranking_state(Finalists(0, (1,)), {0: 100.0, 1: 100.0}, runs, 20, "s").next) is not None:
        runs.append(ValidationRun(ask.trial, ask.comparison_block, f"w{len(runs)}", 100.0))
    assert len(runs) == 60 and ranking_state(Finalists(0, (1,)), {0: 100.0, 1: 100.0}, runs, 20, "s").log_ratios == ()


@pytest.mark.parametrize("lost_pairs", [{0}, {3}, {6}, {0, 4, 5}])
def test_a_lost_block_uses_up_no_pair(lost_pairs):
    """A comparison of at most 7 pairs had 6 after one lost block, and no interval."""
    field, runs, searched = Finalists(0, (1,)), list[ValidationRun](), {0: 100.0, 1: 140.0}
    while (ask := ranking_state(field, searched, runs, 7, "s").next) is not None:
        worker = f"w{len(runs)}" if ask.comparison_block in lost_pairs else "w"
        runs.append(ValidationRun(ask.trial, ask.comparison_block, worker, searched[ask.trial]))
    end = ranking_state(field, searched, runs, 7, "s")
    assert (len(end.log_ratios), end.lost_blocks, len(runs)) == (7, len(lost_pairs), 2 * (7 + len(lost_pairs)))
    assert end.speedup is not None and end.speedup.ci95[0] > 1
