"""A small version of `benchmarks.verdicts`, on recorded noise and on noise of known size."""

import random

import pytest

from benchmarks import baseline, repeats
from benchmarks.verdicts import noise, replay
from benchmarks.verdicts.noise import Draw, Machine
from shardtune.tuner.verdict import final_comparison
from shardtune.tuner.verdict.run_load import UNDISTURBED


def gaussian(deviation, disturbed=0.0):
    """A long record; a disturbed run is 40 % slower."""
    draw = random.Random(7)
    return [[Draw(draw.gauss(0, deviation) - 0.5 * (draw.random() < disturbed)) for _ in range(400)]]


def rate(studies, won):
    return sum(won(faster, verdict) for faster, verdict in studies) / len(studies)


@pytest.fixture(scope="module")
def recorded():
    return noise.of_records([row for row in repeats.read() if row.record in ("idle", "busy")])


def test_arms_that_are_alike_have_no_winner_on_recorded_noise(recorded):
    assert rate(replay.replay(recorded, 150, 0.0, 20, seed=0), lambda _, verdict: verdict.winner is not None) <= 0.065


def test_a_planted_gain_is_found_in_ordinary_noise_with_disturbed_runs():
    planted = replay.replay(gaussian(0.015, disturbed=0.02), 100, 0.05, 20, seed=1)
    assert rate(planted, lambda faster, verdict: verdict.winner == faster) >= 0.85
    assert max(verdict.runs for _, verdict in planted) <= final_comparison.max_runs(final_comparison.MAX_CANDIDATES, 20)


def test_the_best_of_noise_is_no_winner_where_the_search_alone_would_name_one():
    alike = replay.replay(gaussian(0.03), 100, 0.0, 20, seed=2)
    assert rate(alike, lambda _, verdict: verdict.winner is not None) <= 0.08


def test_deviations_are_from_the_configurations_own_median_in_the_order_of_the_runs():
    rows = [repeats.Repeat("r", i, float(i), name, speed, 0.01, 5.0) for i, (name, speed) in enumerate(
        [("a", 100.0), ("b", 10.0), ("a", 110.0), ("b", 10.0), ("a", 90.0), ("b", 10.0)]
    )]  # fmt: skip
    (record,) = noise.of_records(rows)
    assert [run.deviation for run in record] == pytest.approx([0.0, 0.0, 0.0953, 0.0, -0.1054, 0.0], abs=1e-4)


@pytest.mark.parametrize(("successes", "trials", "bound"), [(0, 20, 0.1391), (30, 1000, 0.0405), (5, 5, 1.0)])
def test_the_upper_bound_is_clopper_and_pearsons(successes, trials, bound):
    assert replay.upper95(successes, trials) == pytest.approx(bound, abs=2e-4)


def test_a_disturbed_run_is_repeated_while_it_may_be_and_counts_then():
    draws = iter([Draw(-0.5, True), Draw(0.0), *[Draw(-0.5, True)] * 20])
    machine = Machine(draws, repeat_disturbed=0.5)
    assert machine.run(0.0) == (1.0, UNDISTURBED) and machine.repeats == 1
    assert machine.run(0.0).load.is_disturbed and machine.repeats == 5
    assert Machine(iter([Draw(-0.5, True)]), repeat_disturbed=0.0).run(0.0).speed < 1.0


def test_gains_are_found_on_the_disturbed_record_where_disturbed_runs_are_repeated():
    busy = noise.as_if_seen([row for row in repeats.read() if row.record == "busy"])
    disturbed = replay.disturbed(noise.of_records(busy), 60, 24)
    assert disturbed["planted"]["power"] > disturbed["power_if_each_counted"] + 0.2 and disturbed["runs_ratio"] < 1.55


def test_the_slower_of_two_defaults_is_not_recommended_because_of_one_disturbed_run():
    report = baseline.report(50)
    assert report["now"]["slower_default_served"] <= 0.04 < 0.2 < report["then"]["slower_default_served"]
