"""Rest of a budget: what a final comparison takes at least, and which limit further runs would exceed."""

from dataclasses import replace

import pytest

from shardtune.api_schemas.studies.budget import FEWEST_PAIRS, Budget
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.verdict import budget_left
from shardtune.tuner.verdict.budget_left import StudySpent
from shardtune.tuner.verdict.comparison_blocks import ValidationRun
from shardtune.tuner.verdict.final_comparison import ranking_state
from tests.support.values.synthetic_studies import study_of
from tests.support.values.tuner_inputs import complete, measured
from tests.unit.tuner.verdict.backend_configs import DDP

SPEC = study_of().spec


@pytest.mark.parametrize(
    ("field", "speeds"),
    [
        (Finalists(0, (1,)), {0: 100.0, 1: 150.0}),
        (Finalists(0, (1, 2)), {0: 100.0, 1: 150.0, 2: 149.0}),
        (Finalists(0, (1, 2, 3, 4, 5, 6)), {0: 100.0} | {trial: 150.0 - trial for trial in range(1, 7)}),
        (Finalists(0, (3,), defaults=(0, 1, 2)), {0: 100.0, 1: 99.0, 2: 40.0, 3: 105.0}),
    ],
    ids=["one", "two", "six", "defaults"],
)
def test_a_comparison_without_surprises_takes_the_fewest_runs(field: Finalists, speeds: dict[int, float]) -> None:
    runs: list[ValidationRun] = []
    while (ask := ranking_state(field, speeds, runs, FEWEST_PAIRS, "s", may_end_early=False).next) is not None:
        runs.append(ValidationRun(ask.trial, ask.comparison_block, "w", speeds[ask.trial]))
    assert len(runs) == budget_left.fewest_runs(field, speeds)


def test_nothing_to_compare_takes_no_run() -> None:
    assert budget_left.fewest_runs(Finalists(0, ()), {0: 100.0}) == 0


def test_a_usual_run_is_the_median_of_complete_ones() -> None:
    assert budget_left.usual_run_s([]) is None
    long_run = measured(100.0).model_copy(update={"elapsed_s": 50.0})
    pruned = replace(complete(1, DDP), state=TrialState.PRUNED, measurement=long_run)
    history = [complete(0, DDP), pruned, replace(complete(2, DDP), validation_runs=(long_run,))]
    assert budget_left.usual_run_s(history) == 5.0 and budget_left.usual_run_s(history, {2}) == 27.5
    assert budget_left.block_s(history, (0, 2)) == 32.5


def test_the_checks_are_those_that_the_study_makes() -> None:
    without = SPEC.model_copy(update={"budget": Budget(resume_check=False)})
    assert budget_left.checks_s([complete(0, DDP)], without) == 0.0
    assert budget_left.checks_s([complete(0, DDP)], SPEC) == 10.0
    assert budget_left.checks_s([], SPEC) == 0.0


@pytest.mark.parametrize(
    ("budget", "spent", "says"),
    [
        (Budget(), StudySpent(1e9, 1e9), None),
        (Budget(max_gpu_seconds=400), StudySpent(360.0, 0.0), None),
        (Budget(max_gpu_seconds=400), StudySpent(388.0, 0.0), "(400) leaves 12 GPU-seconds, and a pair takes about 40"),
        (Budget(max_wall_seconds=90), StudySpent(0.0, 85.0), "(90) leaves 5 s, and a pair takes about 20 s"),
        (Budget(max_wall_seconds=90), StudySpent(0.0, 95.0), "leaves 0 s"),
    ],
)
def test_runs_that_do_not_fit_are_told_the_limit(budget: Budget, spent: StudySpent, says: str | None) -> None:
    short = budget_left.shortage(budget, spent, 20.0, 2)
    assert short is None if says is None else short is not None and says in short.describe("a pair")


def test_a_limit_that_is_reached_leaves_room_for_nothing() -> None:
    assert budget_left.shortage(Budget(max_gpu_seconds=400), StudySpent(399.0, 0.0), 0.0, 2) is None
    assert budget_left.shortage(Budget(max_gpu_seconds=400), StudySpent(400.0, 0.0), 0.0, 2) is not None


def test_a_limit_is_stated_in_full_and_its_rest_beside_what_is_needed() -> None:
    large = budget_left.shortage(Budget(max_gpu_seconds=1234567), StudySpent(1234560.0, 0.0), 20.0, 2)
    assert large is not None and large.limit == "budget.max_gpu_seconds (1234567)"
    close = budget_left.shortage(Budget(max_wall_seconds=100), StudySpent(0.0, 88.4), 12.4, 2)
    assert close is not None and (close.left, close.needed) == ("11.6 s", "12.4 s")
