"""Estimate the trials, time and gain of a study before anything runs, from its budget and predicted step times.

The estimate knows nothing of the search's own decisions: trials that the memory gate rejects, pruned runs, and the gain
that makes a search end early are not simulated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from shardtune.api_schemas.formatting import listed
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.study_cost import ExpectedGain, Range, StudyCost
from shardtune.api_schemas.trials.predictions import Prediction
from shardtune.service.planning.foreseen_run import ForeseenRun, PlanOf
from shardtune.tuner.prediction.calibration import BAND_DEVIATIONS
from shardtune.tuner.search.seeds import MAX_SEEDS
from shardtune.tuner.search.stopping import MIN_GAIN, MIN_GUIDED
from shardtune.tuner.verdict import final_comparison, quiet_test
from shardtune.tuner.verdict.recipes import comparison

_BAND = math.exp(BAND_DEVIATIONS * 0.123)
"""Factor between a predicted speed ratio and the upper end of its 90 % band; dividing by it gives the lower end. The
errors of such ratios have a median of 0.083 in 17 groups of published rows (docs/measurements/predictor.md), which is
0.67 standard deviations.
"""
# CPU: whole runs of llama-tiny took 4.6 to 6.5 s, 1 to 4 of them in steps (docs/measurements/study-cost.md).
_START_S = {"cpu": 3.0, "cuda": 14.0}
"""Seconds per run for starting ranks, building the model and ending; the figure for GPUs is an estimate, not a
measurement.
"""
_COMPILE_S = Range(low=13.5, high=45.0)
"""Seconds that torch.compile adds to a run outside of its first steps: `low` if inductor's cache is filled, `high` if
it is empty. Both are estimates, not measurements.
"""
_USUAL_TRIALS = Range(low=6, high=17)
"""Number of trials of a search that ends by its stopping rule and not by its budget. The two values are the tenth and
the ninetieth percentile of 240 simulated studies of 8B and 70B models (docs/measurements/study-cost.md).
"""
_USUAL_COMPARISON = Range(low=10, high=42)
"""Number of runs in a final comparison (paired runs that decide). The two values are the tenth and the ninetieth
percentile of 240 simulated studies of 8B and 70B models.
"""


@dataclass(frozen=True)
class CostPredictions:
    """Predictions from which a study's cost is estimated."""

    fastest: Sequence[Prediction]
    """Predictions of the fastest configurations of the study's search space; empty if nothing fits or no speed can be
    predicted.
    """
    baselines: Sequence[Prediction]
    """Predictions of the study's baseline. If it has none, predictions of the default configurations that the
    documentation of each backend gives.
    """


@dataclass(frozen=True)
class ConsideredPlan:
    """Runs that compare the study's own recipe with the other recipes (numerical formats and optimizers) that the
    user wants considered.
    """

    recipes: int = 0
    """Number of considered recipes."""
    loss_steps: int = 0
    """Number of steps over which the losses of two recipes (numerical formats and optimizers) are compared."""

    @property
    def runs(self) -> Range:
        """Number of runs that compare recipes (numerical formats and optimizers), those of the study's own recipe
        included; 0 if no other recipe is considered.
        """
        arms = self.recipes + 1 if self.recipes else 0
        return Range(low=arms * quiet_test.FEWEST_PAIRS, high=arms * comparison.MOST_BLOCKS)

    @property
    def whole_loss_steps(self) -> int:
        """Total number of steps in which losses are recorded for the comparison of recipes (numerical formats and
        optimizers), all recipes together.
        """
        return self.loss_steps * (self.recipes + 1) if self.recipes else 0


NOTHING_CONSIDERED = ConsideredPlan()


def estimate(
    budget: Budget,
    cluster: Cluster,
    plan: PlanOf,
    forecast: CostPredictions,
    *,
    has_baseline: bool,
    considered: ConsideredPlan = NOTHING_CONSIDERED,
) -> StudyCost:
    """Estimate the cost and the gain of a study with this budget."""
    trials = _trials(budget)
    runs = _validation_runs(budget, trials, has_baseline=has_baseline)
    hours = _hours(budget, cluster, plan, forecast, (trials, runs), considered)
    world = cluster.world_size
    return StudyCost(
        trials=trials,
        validation_runs=runs,
        recipe_runs=considered.runs,
        minutes=None if hours is None else Range(low=60 * hours.low, high=60 * hours.high),
        gpu_hours=None if hours is None else Range(low=world * hours.low, high=world * hours.high),
        expected_gain=_gain(forecast),
        stops=(*_stops(budget, cluster, considered), *_too_little(budget, cluster, plan, forecast)),
        basis=(
            "an estimate from the budget and predicted step times, not a measurement: "
            f"{_START_S[cluster.device]:.0f} s to start and end a run, {_COMPILE_S.low:.0f} to {_COMPILE_S.high:.0f} s more "
            "where it compiles; numbers of runs are those of simulated studies unless the budget sets them; "
            "rejected, pruned and repeated runs, waits for a quiet machine, the resume check, the start of the worker, and the "
            "build of DeepSpeed's CPU Adam before the first trial that offloads its optimizer are not foreseen"
            + ("; considered recipes are taken to be as fast as the stated one" if considered.recipes else "")
        ),
    )


def _trials(budget: Budget) -> Range:
    if budget.max_trials is not None:
        return Range(low=budget.max_trials, high=budget.max_trials)
    usual = budget.planned_gpu_hours is None
    return _USUAL_TRIALS if usual else Range(low=MIN_GUIDED, high=budget.most_trials)


def _validation_runs(budget: Budget, trials: Range, *, has_baseline: bool) -> Range:
    defaults = 0 if has_baseline else MAX_SEEDS // 2
    fewest, most = round(trials.low), round(trials.high)
    low = final_comparison.likely_runs(fewest, quiet_test.FEWEST_PAIRS, defaults)
    high = final_comparison.likely_runs(most, budget.max_pairs, defaults)
    if trials == _USUAL_TRIALS:
        return Range(low=min(low, _USUAL_COMPARISON.low), high=min(high, _USUAL_COMPARISON.high))
    return Range(low=low, high=high)


def _hours(
    budget: Budget,
    cluster: Cluster,
    plan: PlanOf,
    forecast: CostPredictions,
    runs: tuple[Range, Range],
    considered: ConsideredPlan,
) -> Range | None:
    timed = [prediction for prediction in (*forecast.fastest, *forecast.baselines) if prediction.speed is not None]
    if not timed:
        return None
    by_step = sorted((ForeseenRun.of(prediction, plan) for prediction in timed), key=lambda run: run.step_s)
    # A search tries slower configurations than its end: the slowest baseline bounds a usual trial.
    fastest, usual, slowest = by_step[0], by_step[len(by_step) // 2], by_step[-1]
    compiles = median(prediction.config.compiles for prediction in timed) > 0
    start_s = _START_S[cluster.device]
    soonest_s, latest_s = (
        start_s + (compile_s if compiles else 0.0) for compile_s in (_COMPILE_S.low, _COMPILE_S.high)
    )
    trials, validation = runs
    search = Range(
        low=trials.low * (soonest_s + fastest.seconds(shortest=True)),
        high=trials.high * (latest_s + slowest.seconds(shortest=False)),
    )
    compared = Range(
        low=validation.low * (soonest_s + fastest.seconds(shortest=True)) + fastest.whole_steps_s(soonest_s),
        high=validation.high * (latest_s + usual.seconds(shortest=False)) + slowest.whole_steps_s(latest_s),
    )
    # Timed for whole seconds; its first steps and warm-up are those of any run that times whole steps.
    sustained_s = budget.sustained_seconds(cluster.device)
    long_run = Range(
        low=sustained_s + soonest_s + fastest.first_steps_s(shortest=True) if sustained_s else 0.0,
        high=sustained_s + latest_s + slowest.first_steps_s(shortest=False) if sustained_s else 0.0,
    )
    beside = Range(
        low=considered.runs.low * (soonest_s + fastest.of_whole_steps().seconds(shortest=True))
        + considered.whole_loss_steps * fastest.step_s,
        high=considered.runs.high * (latest_s + usual.of_whole_steps().seconds(shortest=False))
        + considered.whole_loss_steps * usual.step_s,
    )
    parts = (search, compared, long_run)
    whole = Range(low=sum(part.low for part in parts), high=sum(part.high for part in parts))
    # The limits of the budget hold for the answer, and not for the recipes beside it.
    whole = _limited(whole, budget, cluster.world_size)
    return Range(low=(whole.low + beside.low) / 3600, high=(whole.high + beside.high) / 3600)


def _timed(forecast: CostPredictions) -> list[Prediction]:
    return [prediction for prediction in (*forecast.fastest, *forecast.baselines) if prediction.speed is not None]


def _too_little(budget: Budget, cluster: Cluster, plan: PlanOf, forecast: CostPredictions) -> list[str]:
    """Return a warning that the limits of GPU-seconds and time leave too little for the quickest verdict: a trial of the
    baseline, one of a candidate, and the fewest pairs. Empty if they leave enough, or it is not known."""
    times = [_START_S[cluster.device] + ForeseenRun.of(run, plan).seconds(shortest=True) for run in _timed(forecast)]
    if not times:
        return []
    least_s, pairs = (2 + 2 * quiet_test.FEWEST_PAIRS) * min(times), quiet_test.FEWEST_PAIRS
    if _limited(Range(low=least_s, high=least_s), budget, cluster.world_size).low == least_s:
        return []
    return [
        f"these limits are likely to leave the study undecided: two trials and {pairs} pairs, the least that can confirm a gain, take "
        f"about {least_s:,.0f} s ({least_s * cluster.world_size:,.0f} GPU-seconds)"
    ]


def _limited(study: Range, budget: Budget, world: int) -> Range:
    """Reduce the estimated seconds of a study to what its limits of GPU-seconds and time allow."""
    limits = [
        budget.max_wall_seconds,
        None if budget.max_gpu_seconds is None else budget.max_gpu_seconds / world,
    ]
    most = min((limit for limit in limits if limit is not None), default=math.inf)
    return Range(low=min(study.low, most), high=min(study.high, most))


def _gain(forecast: CostPredictions) -> ExpectedGain | None:
    fastest, baseline = _fastest_that_fits(forecast.fastest), _fastest_that_fits(forecast.baselines)
    if fastest is None or baseline is None:
        return None
    assert fastest.speed is not None and baseline.speed is not None
    ratio = max(1.0, fastest.speed.tokens_per_s_per_gpu / baseline.speed.tokens_per_s_per_gpu)
    return ExpectedGain(
        value=ratio,
        low=max(1.0, ratio / _BAND),
        high=ratio * _BAND,
        fastest=fastest.description,
        baseline=baseline.description,
    )


def _fastest_that_fits(predictions: Sequence[Prediction]) -> Prediction | None:
    fitting = [item for item in predictions if item.speed is not None and item.memory.verdict != "does not fit"]
    sure = [item for item in fitting if item.memory.verdict == "fits"]
    return max(sure or fitting, key=lambda item: item.speed.tokens_per_s_per_gpu if item.speed else 0.0, default=None)


def _limits(budget: Budget) -> str:
    """Limits of GPU-seconds and time that a budget sets, for a sentence; empty if it sets none."""
    limits = []
    if budget.max_gpu_seconds is not None:
        limits.append(f"{budget.max_gpu_seconds:,.12g} GPU-seconds (budget.max_gpu_seconds)")
    if budget.max_wall_seconds is not None:
        limits.append(f"{budget.max_wall_seconds:,.12g} seconds (budget.max_wall_seconds)")
    return listed(limits, "or")


def _stops(budget: Budget, cluster: Cluster, considered: ConsideredPlan) -> list[str]:
    if budget.max_trials is not None:
        stops = [f"the search ends after {budget.max_trials} trials (budget.max_trials)"]
    elif budget.planned_gpu_hours is not None:
        stops = [
            f"the search ends once the next trial costs more than it is expected to save in {budget.planned_gpu_hours:,.12g} "
            f"GPU-hours (budget.planned_gpu_hours), or after {budget.most_trials} trials"
        ]
    else:
        stops = [
            f"the search ends once the next trial is expected to gain less than {MIN_GAIN:.0%}, or after "
            f"{budget.most_trials} trials"
        ]
    limits = _limits(budget)
    if limits:
        stops.append(f"or once the rest of {limits} is needed for the final comparison")
    stops.append(
        f"the final comparison ends with its verdict, after {quiet_test.FEWEST_PAIRS} to {budget.max_pairs} pairs"
        + (f"; or before a pair that would exceed {limits}" if limits else "")
    )
    if sustained_s := budget.sustained_seconds(cluster.device):
        stops.append(
            f"the answer's configuration then trains for {sustained_s:g} s more, which shows its sustained speed "
            "(budget.sustained_run_s; 0 leaves it out)"
        )
    if considered.recipes:
        stops.append(
            f"the comparison of recipes (consider) ends with an interval for each, after {quiet_test.FEWEST_PAIRS} to "
            f"{comparison.MOST_BLOCKS} runs of each recipe"
        )
    return stops
