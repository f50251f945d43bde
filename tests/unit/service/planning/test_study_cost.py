"""The cost of a study is estimated from its budget and predictions, and says what it does not know."""

import pytest

from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.study_cost import StudyCost
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.predictions import PredictionRequest, PredictionTable
from shardtune.service.planning import study_cost
from shardtune.service.planning.foreseen_run import RunPlan
from shardtune.service.planning.study_cost import ConsideredPlan, CostPredictions
from shardtune.service.studies.study_cost import StudyMachine, estimate_on
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.search import seeds
from shardtune.tuner.search.fastest import answer_request

MEASURE_PLAN = MeasurePlan()


@pytest.fixture(scope="module")
def table() -> PredictionTable:
    request = PredictionRequest(model="llama-tiny", cluster="8xa100-80gb", top=3)
    cluster = answer_request(request.model_copy(update={"top": 0})).cluster
    return answer_request(request.model_copy(update={"configs": tuple(seeds.documented_defaults(cluster))}))


def estimate(table: PredictionTable, budget: Budget, **changes: CostPredictions) -> StudyCost:
    forecast = changes.get("forecast", CostPredictions(table.fastest, table.predictions))
    return study_cost.estimate(budget, table.cluster, lambda _: RunPlan(MEASURE_PLAN), forecast, has_baseline=False)


def test_a_number_of_trials_is_exact_and_a_default_budget_a_range(table: PredictionTable) -> None:
    exact, default = estimate(table, Budget(max_trials=9)), estimate(table, Budget())
    assert (exact.trials.low, exact.trials.high) == (9, 9)
    assert (default.trials.low, default.trials.high) == (6, 17)
    assert (default.validation_runs.low, default.validation_runs.high) == (10, 42)
    assert any("after 40 trials" in stop for stop in default.stops)
    assert exact.validation_runs.low >= 14, "seven pairs at least"


def test_hours_are_those_of_all_ranks(table: PredictionTable) -> None:
    cost = estimate(table, Budget(max_trials=9))
    assert cost.minutes is not None and cost.gpu_hours is not None
    assert cost.gpu_hours.high == pytest.approx(8 * cost.minutes.high / 60)
    assert 0 < cost.minutes.low < cost.minutes.high


def test_a_default_study_of_8b_is_estimated_about_as_simulated_ones_are() -> None:
    """200 simulated studies in whole steps, without a sustained run, took 4.0 to 8.3 GPU-hours
    (docs/measurements/study-cost.md)."""
    request = PredictionRequest(
        model="llama-3.1-8b", cluster="8xh100", precision="bf16-mixed", sequence_length=8192, global_batch=96, top=5
    )
    cluster = answer_request(request.model_copy(update={"top": 0})).cluster
    table = answer_request(request.model_copy(update={"configs": tuple(seeds.documented_defaults(cluster))}))
    cost = estimate(table, Budget(sustained_run_s=0)).gpu_hours
    assert cost is not None and 1 < cost.low < 4.0 and 8.3 < cost.high < 40


def test_a_limit_on_time_bounds_the_whole_study(table: PredictionTable) -> None:
    free, limited = estimate(table, Budget()), estimate(table, Budget(max_wall_seconds=60))
    assert free.minutes is not None and limited.minutes is not None
    assert limited.minutes.low <= limited.minutes.high == 1.0 < free.minutes.high
    assert sum("60 seconds (budget.max_wall_seconds)" in text for text in limited.stops) == 2


def test_a_limit_on_gpu_seconds_bounds_all_but_the_recipes(table: PredictionTable) -> None:
    hours = estimate(table, Budget(max_gpu_seconds=36)).gpu_hours
    assert hours is not None and hours.high == pytest.approx(0.01)
    considered = ConsideredPlan(recipes=1, loss_steps=10)
    forecast, plan = CostPredictions(table.fastest, table.predictions), RunPlan(MEASURE_PLAN)
    beside = study_cost.estimate(
        Budget(max_gpu_seconds=36), table.cluster, lambda _: plan, forecast, has_baseline=False, considered=considered
    ).gpu_hours
    assert beside is not None and beside.low > hours.low and beside.high > hours.high


def test_a_gain_has_a_band_that_never_falls_below_the_baseline(table: PredictionTable) -> None:
    gain = estimate(table, Budget()).expected_gain
    assert gain is not None and 1 <= gain.low <= gain.value < gain.high
    same = estimate(table, Budget(), forecast=CostPredictions(table.predictions, table.predictions)).expected_gain
    assert same is not None and (same.value, same.low) == (1, 1)


def test_the_sustained_run_takes_two_minutes_and_a_start_unless_it_is_left_out(table: PredictionTable) -> None:
    without, default = estimate(table, Budget(sustained_run_s=0)), estimate(table, Budget())
    assert without.minutes is not None and default.minutes is not None
    assert 2 < default.minutes.low - without.minutes.low < default.minutes.high - without.minutes.high < 5
    assert any("for 120 s more" in stop for stop in default.stops)
    assert not any("budget.sustained_run_s" in stop for stop in without.stops)


@pytest.mark.parametrize(("model", "count"), [("llama-tiny", 1), ({"script": "mine"}, 0)])
def test_a_study_of_a_script_makes_no_sustained_run(model: object, count: int) -> None:
    workload = {"sequence_length": 64, "global_batch": 64, "precision": "bf16-mixed"}
    request = StudyRequest.model_validate({"model": model, "cluster": "8xh100", "workload": workload})
    cost = estimate_on(request, StudyMachine.of_cluster(catalogue.parse_cluster("8xh100")), MEASURE_PLAN)
    assert sum("for 120 s more" in stop for stop in cost.stops) == count


def test_what_is_not_counted_is_named(table: PredictionTable) -> None:
    basis = estimate(table, Budget()).basis
    for part in ("repeated runs", "waits for a quiet machine", "the resume check", "the start of the worker"):
        assert part in basis, part


def test_what_cannot_be_predicted_is_not_stated(table: PredictionTable) -> None:
    cost = estimate(table, Budget(max_trials=9), forecast=CostPredictions((), ()))
    assert (cost.minutes, cost.gpu_hours, cost.expected_gain) == (None, None, None)
    assert cost.trials.high == 9 and cost.stops


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (Budget(max_trials=9), "after 9 trials (budget.max_trials)"),
        (Budget(planned_gpu_hours=500), "expected to save in 500 GPU-hours"),
        (Budget(), "expected to gain less than 1%"),
        (Budget(max_gpu_seconds=100), "or once the rest of 100 GPU-seconds (budget.max_gpu_seconds) is needed"),
        (Budget(max_gpu_seconds=100), "before a pair that would exceed 100 GPU-seconds (budget.max_gpu_seconds)"),
        (Budget(max_pairs=9), "after 3 to 9 pairs"),
    ],
)
def test_every_limit_that_stops_a_study_is_named(table: PredictionTable, budget: Budget, text: str) -> None:
    assert any(text in stop for stop in estimate(table, budget).stops)


def test_a_limit_below_the_quickest_verdict_says_that_it_leaves_the_study_undecided(table: PredictionTable) -> None:
    def warns(budget: Budget) -> bool:
        return any("likely to leave the study undecided" in text for text in estimate(table, budget).stops)

    assert warns(Budget(max_gpu_seconds=36)) and warns(Budget(max_wall_seconds=60))
    assert not warns(Budget()) and not warns(Budget(max_wall_seconds=3600)) and not warns(Budget(max_trials=2))
    assert estimate(table, Budget(max_gpu_seconds=36), forecast=CostPredictions((), ())).stops
