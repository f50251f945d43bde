"""Figures over many simulated studies of one case."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import Any, TypeVar

from benchmarks.study_cost.cases import Case
from benchmarks.study_cost.study import SimulatedStudy, VirtualStudy
from benchmarks.study_cost.truth import Truth
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.service.planning.planner_cache import PlannerCache
from shardtune.tuner.objective import available_gib
from shardtune.tuner.search.guided_sampler.pool import Pool
from shardtune.tuner.search.space import Space

RIGHT = 0.97
"""Fraction of the best true speed from which an answer counts as right."""
Value = TypeVar("Value")


class SharedCache(PlannerCache):
    """Planner's cache in which all simulated studies of a case share space and predictions, as they are the same."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self._case = case

    def space(self, study_id: str, build: Callable[[], Space]) -> Space:
        """Search space of the case."""
        return self._case.search_space

    def pool(self, study_id: str, state: str, build: Callable[[], Pool]) -> Pool:
        """Candidates of the case."""
        return self._case.pool


@dataclass(frozen=True)
class Outcome:
    """What one study found, against the truth."""

    study: SimulatedStudy
    share_of_best: float
    """True speed of the answer as a fraction of the best true speed; 0 without an answer."""
    is_false_winner: bool
    """Whether the study confirmed a configuration that is not faster than the baseline."""


def simulate(case: Case, noise: float, studies: int) -> list[Outcome]:
    """Run many studies, each with errors of prediction of its own."""
    cache = SharedCache(case)
    # As in the service, a run may use the memory that the objective leaves it.
    limit_gib = available_gib(case.cluster, case.spec.objective)
    outcomes = []
    for number in range(studies):
        seed = f"{case.name} {number}"
        truth = Truth(case.pool, limit_gib, seed, case.errors, case.spec.workload.global_batch, case.cluster.world_size)
        outcomes.append(_outcome(VirtualStudy(case, cache, truth, noise, seed).run()))
    return outcomes


def _outcome(study: SimulatedStudy) -> Outcome:
    if study.result is None:
        return Outcome(study, 0.0, False)
    best, baseline = (study.truth.of(item.config).step_s for item in (study.result.best, study.result.baseline))
    is_false = study.result.verdict is Verdict.CONFIRMED and best >= baseline
    return Outcome(study, min(1.0, study.truth.best_step_s / best), is_false)


def figures(case: Case, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Report of one case at one noise."""
    ranks = case.cluster.world_size
    hours = [outcome.study.spending.wall_s * ranks / 3600 for outcome in outcomes]
    answered = [outcome for outcome in outcomes if outcome.study.result is not None]
    steps = [outcome.study.truth.of(outcome.study.result.best.config).step_s for outcome in answered if outcome.study.result]  # fmt: skip
    results = [outcome.study.result for outcome in answered if outcome.study.result is not None]
    return {
        "studies": len(outcomes),
        "failed": Counter(outcome.study.failure for outcome in outcomes if outcome.study.failure),
        "gpu_hours": {"median": _rounded(median(hours)), "p10": _quantile(hours, 0), "p90": _quantile(hours, 8)},
        "wall_s": round(median(outcome.study.spending.wall_s for outcome in outcomes)),
        "step_s": _rounded(median(steps)) if steps else None,
        "right": _share(outcomes, lambda outcome: outcome.share_of_best >= RIGHT),
        "share_of_best": _rounded(median(outcome.share_of_best for outcome in outcomes)),
        "false_winners": _share(outcomes, lambda outcome: outcome.is_false_winner),
        "verdicts": Counter(result.verdict.value for result in results),
        "pairs": _rounded(fmean(result.final_comparison.pairs for result in results if result.final_comparison)) if results else None,
        "candidates": _rounded(fmean(len(result.final_comparison.candidates) for result in results if result.final_comparison)) if results else None,
        "runs": _mean_by_name([outcome.study.spending.runs for outcome in outcomes], 1.0),
        "runs_p10_p90": {phase: _range([outcome.study.spending.runs[phase] for outcome in outcomes]) for phase in ("search", "final comparison")},
        "gpu_seconds_of_a_validation_run": _of_a_run(outcomes, "final comparison", ranks),
        "real": case.real,
        "gpu_seconds_by_phase": _mean_by_name([outcome.study.spending.by_phase for outcome in outcomes], ranks),
        "gpu_seconds_by_activity": _mean_by_name([outcome.study.spending.by_activity for outcome in outcomes], ranks),
    }  # fmt: skip


def _mean_by_name(rows: Sequence[dict[str, Any]], factor: float) -> dict[str, float]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: round(factor * fmean(row.get(name, 0.0) for row in rows), 1) for name in names}


def _of_a_run(outcomes: Sequence[Outcome], phase: str, ranks: int) -> float:
    """GPU-seconds of one run of a phase, on average."""
    spendings = [outcome.study.spending for outcome in outcomes]
    runs = sum(spending.runs[phase] for spending in spendings)
    return _rounded(ranks * sum(spending.by_phase[phase] for spending in spendings) / runs) if runs else 0.0


def _share(outcomes: Sequence[Value], holds: Callable[[Value], bool]) -> float:
    return round(sum(map(holds, outcomes)) / len(outcomes), 3)


def _quantile(values: Sequence[float], tenth: int) -> float:
    return _rounded(quantiles(values, n=10, method="inclusive")[tenth]) if len(values) > 1 else _rounded(values[0])


def _range(values: Sequence[float]) -> tuple[float, float]:
    return _quantile(values, 0), _quantile(values, 8)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
