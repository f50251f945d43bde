"""On a quiet machine screening ends as soon as no candidate can be faster than the leader by a gain that is worth a change."""

import math
import random

import pytest

from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.tuner.verdict import quiet_screening
from shardtune.tuner.verdict.comparison_blocks import ComparisonBlocks, ValidationRun
from shardtune.tuner.verdict.final_comparison import ranking_state
from shardtune.tuner.verdict.run_load import RunLoad

FIELD = Finalists(0, (1, 2, 3, 4))
QUIET = RunLoad(spread=0.002)


def blocks_of(*columns, searched=None, disturbed=(), load=QUIET):
    """Comparison blocks with these speeds of trials 0 to 4, all taken."""
    runs = [
        ValidationRun(trial, number, "w", speed, load=load)
        for number, column in enumerate(columns)
        for trial, speed in enumerate(column)
    ]
    search_speeds = dict(enumerate(searched or (100.0,) * 5))
    blocks = ComparisonBlocks(FIELD, search_speeds, disturbed, runs, "s")
    for _ in columns:
        blocks.take(FIELD.members)
    return blocks


def still_open(blocks):
    return quiet_screening.still_open(FIELD.candidates, 0, blocks)


def test_one_block_and_the_search_leave_only_the_leader_where_runs_repeat_closely():
    blocks = blocks_of((50.0, 99.1, 100.0, 98.0, 99.9), searched=(50.1, 99.0, 100.1, 98.1, 100.0))
    assert still_open(blocks) == (2,)


def test_candidates_stay_open_where_runs_differ_from_run_to_run():
    blocks = blocks_of((52.0, 97.0, 100.0, 103.0, 95.0), searched=(49.0, 103.0, 99.0, 96.0, 101.0))
    assert still_open(blocks) == FIELD.candidates


def test_the_clearly_slower_of_noisy_candidates_are_eliminated_one_by_one():
    blocks = blocks_of((51.0, 100.0, 101.0, 92.0, 91.0), searched=(50.0, 101.0, 100.0, 91.0, 92.0))
    assert still_open(blocks) == (1, 2)


@pytest.mark.parametrize(
    "load", [RunLoad(), RunLoad(is_disturbed=True, spread=0.002), RunLoad(is_throttled=True, spread=0.002)]
)
def test_runs_that_do_not_show_a_quiet_machine_eliminate_nothing(load):
    equal = (100.0,) * 5
    assert still_open(blocks_of(equal, equal, load=load)) == FIELD.candidates


def test_a_disturbed_search_run_is_no_comparison():
    equal = (100.0,) * 5
    assert still_open(blocks_of(equal, disturbed={3})) == FIELD.candidates
    assert len(still_open(blocks_of(equal, equal, disturbed={3}))) == 1


def test_wide_windows_of_the_runs_keep_candidates_open_that_agree_by_luck():
    equal = (100.0,) * 5
    assert still_open(blocks_of(equal, load=RunLoad(spread=0.2))) == FIELD.candidates


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.03])
def test_a_candidate_that_is_faster_by_a_worthwhile_gain_is_seldom_eliminated(noise):
    """The study's own error at one look: at most 5 % under Gaussian noise, for a gain on the limit (2 %)."""
    draw, lost, studies = random.Random(7), 0, 1000
    speed = lambda trial: math.exp(draw.gauss(math.log(1.02) if trial == 3 else 0.0, noise))  # noqa: E731
    for _ in range(studies):
        blocks = blocks_of([speed(trial) for trial in range(5)], searched=[speed(trial) for trial in range(5)])
        lost += 3 not in still_open(blocks)
    assert lost <= (quiet_screening.ERROR + 0.01) * studies


def test_a_final_comparison_pairs_the_leader_after_one_block_on_a_quiet_machine():
    """With noise-free runs: one block of five trials, then three pairs, by the quiet test."""
    runs, searched = [], {0: 70.0, 1: 100.0, 2: 101.0, 3: 100.5, 4: 99.0}
    while (ask := ranking_state(FIELD, searched, runs, 24, "s").next) is not None:
        speed = searched[ask.trial] * (1 + 0.0005 * (len(runs) % 3))
        runs.append(ValidationRun(ask.trial, ask.comparison_block, "w", speed, load=QUIET))
    end = ranking_state(FIELD, searched, runs, 24, "s")
    assert end.challenger == 2 and end.is_settled_early
    assert {run.trial for run in runs[:5]} == {0, 1, 2, 3, 4} and {run.trial for run in runs[5:]} == {0, 2}


def lost_studies(speed_of_run, studies=400):
    """Fraction of studies whose fastest trial, 3, is eliminated at one look. `speed_of_run(draw, trial, time)`."""
    draw, lost = random.Random(11), 0
    for _ in range(studies):
        columns = []
        for number in range(2):
            column = dict.fromkeys(range(5), 0.0)
            for position, trial in enumerate(draw.sample(range(5), 5)):
                column[trial] = speed_of_run(draw, trial, 5 * number + position)
            columns.append(tuple(column.values()))
        lost += 3 not in still_open(blocks_of(columns[1], searched=columns[0]))
    return lost / studies


@pytest.mark.parametrize("begin", [2, 7, 8])
@pytest.mark.parametrize("change", [0.05, -0.05])
def test_a_machine_that_changes_its_speed_in_the_middle_loses_no_gain_of_five_percent(change, begin):
    """A change among the runs of a comparison is noise of that comparison, and keeps candidates open."""

    def speed(draw, trial, time):
        gain = math.log(1.05) if trial == 3 else 0.0
        return math.exp(gain + draw.gauss(0, 0.002) + (change if time >= begin else 0.0))

    assert lost_studies(speed) <= quiet_screening.ERROR


def test_a_far_noisier_candidate_with_a_gain_of_five_percent_is_seldom_eliminated():
    """All trials share one estimate of noise, which a single noisy one raises enough for itself."""

    def speed(draw, trial, _time):
        is_noisy = trial == 3
        return math.exp(math.log(1.05) * is_noisy + draw.gauss(0, 0.05 if is_noisy else 0.003))

    assert lost_studies(speed) <= quiet_screening.ERROR
