"""Who wins: the baseline, whom to promote against it, and the result their fresh runs support."""

import math
from collections.abc import Iterable, Sequence
from statistics import median

from shardtune.api_schemas.measurements import Measurement
from shardtune.api_schemas.promotion import PromotionField
from shardtune.api_schemas.studies import Contender, Promotion, StudyResult, Verdict
from shardtune.api_schemas.trials import TrialOrigin, TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict import paired_test
from shardtune.tuner.verdict.parity import Judgement
from shardtune.tuner.verdict.promotion import MOST_CANDIDATES, NEAR, Standing


def contender(obs: Observation) -> Contender:
    """A measured trial as shown to a user; its figures are those of its fresh runs where it has them."""
    runs = obs.confirmations or ((obs.measurement,) if obs.measurement is not None else ())
    assert runs, "a contender has been measured"
    speeds = [run.tokens_per_s_per_gpu for run in runs]
    mfus = [run.mfu for run in runs if run.mfu is not None]
    return Contender(
        trial_number=obs.number,
        config=obs.config,
        description=obs.config.describe(),
        tokens_per_s_per_gpu=median(speeds),
        spread=(min(speeds), max(speeds)) if len(obs.confirmations) > 1 else None,
        peak_allocated_gib=_largest(run.memory.peak_allocated_gib for run in _all_runs(obs)),
        peak_reserved_gib=_largest(run.memory.peak_reserved_gib for run in _all_runs(obs)),
        mfu=median(mfus) if mfus else None,
        runs=len(runs),
    )


def best_so_far(history: Sequence[Observation], judgement: Judgement) -> Contender | None:
    """The fastest trial by search runs that trains the right thing, as far as is known."""
    feasible = _feasible(history, judgement)
    return contender(max(feasible, key=_search_speed)) if feasible else None


def pick(history: Sequence[Observation], spec_has_baseline: bool, judgement: Judgement) -> PromotionField:
    """Choose the baseline and the fastest other feasible trials. Nothing is picked until two trajectories agree."""
    if judgement.reference is None:
        measured = any(obs.state is TrialState.COMPLETE for obs in history)
        reason = (
            "no two trials of different backends train the same thing" if measured else "no configuration is feasible"
        )
        return PromotionField(None, (), (f"no winner: {reason}",))
    feasible = _feasible(history, judgement)
    if not feasible:
        return PromotionField(None, (), ("no winner: no configuration is feasible",))
    baseline, notes = _baseline(history, feasible, spec_has_baseline, judgement)
    others = sorted((obs for obs in feasible if obs.number != baseline.number), key=_search_speed, reverse=True)
    if not others:
        return PromotionField(
            baseline.number, (), (*notes, "no other configuration is feasible: there is nothing to compare")
        )
    near = [obs.number for obs in others[:MOST_CANDIDATES] if _search_speed(obs) >= NEAR * _search_speed(others[0])]
    return PromotionField(baseline.number, tuple(near), notes)


def search_speeds(history: Sequence[Observation]) -> dict[int, float]:
    """tokens_per_s_per_gpu of the search runs that were measured, by trial."""
    return {obs.number: _search_speed(obs) for obs in history if obs.measurement is not None}


def unbeaten(history: Sequence[Observation], field: PromotionField) -> StudyResult:
    """The answer where nothing but the baseline is feasible."""
    stands = contender(next(obs for obs in history if obs.number == field.baseline))
    verdict = Verdict.NO_SIGNIFICANT_IMPROVEMENT
    return StudyResult(best=stands, baseline=stands, speedup=None, verdict=verdict, notes=field.notes)


def result(
    history: Sequence[Observation],
    field: PromotionField,
    standing: Standing,
    cost: tuple[int, float],
    without_interval: str = "too few pairs for an interval: blocks were interrupted and ran on different workers",
) -> StudyResult:
    """The answer of a study after its promotion, whose runs and GPU-seconds are its `cost`.

    `without_interval` says why there are too few pairs, should that be so.
    """
    assert field.baseline is not None and standing.challenger is not None
    trials = {obs.number: obs for obs in history}
    baseline, challenger = contender(trials[field.baseline]), contender(trials[standing.challenger])
    speedup = paired_test.speedup(standing.log_ratios)
    is_faster = speedup is not None and speedup.ci95[0] > 1
    lacking = () if speedup else (without_interval,)
    return StudyResult(
        best=challenger if is_faster else baseline,
        baseline=baseline,
        candidate=None if is_faster else challenger,
        speedup=speedup,
        verdict=Verdict.CONFIRMED if is_faster else Verdict.NO_SIGNIFICANT_IMPROVEMENT,
        promotion=Promotion(
            candidates=field.candidates,
            pairs=len(standing.log_ratios),
            runs=cost[0],
            gpu_seconds=cost[1],
            ratios=tuple(map(math.exp, standing.log_ratios)),
        ),
        notes=(*field.notes, *lacking),
    )


def _baseline(
    history: Sequence[Observation], feasible: Sequence[Observation], spec_has_baseline: bool, judgement: Judgement
) -> tuple[Observation, tuple[str, ...]]:
    own = next((obs for obs in feasible if obs.origin == TrialOrigin.BASELINE), None)
    if own is not None:
        return own, ()
    defaults = [obs for obs in feasible if obs.origin == TrialOrigin.DEFAULT]
    notes: tuple[str, ...] = ()
    if spec_has_baseline:
        notes = (f"the given baseline was replaced: {_why_not(history, judgement)}",)
    if defaults:
        fastest = max(defaults, key=_search_speed)
        return fastest, (*notes, f"baseline: {fastest.config.describe()}, the fastest feasible documented default")
    first = min(feasible, key=lambda obs: obs.number)
    note = f"no documented default is feasible; trial {first.number}, the first that was, stands as baseline"
    return first, (*notes, note)


def _why_not(history: Sequence[Observation], judgement: Judgement) -> str:
    own = next((obs for obs in history if obs.origin == TrialOrigin.BASELINE), None)
    if own is None:
        return "the memory gate rejected it"
    if own.number in judgement.infeasible:
        return judgement.infeasible[own.number]
    return own.failure.message if own.failure is not None else f"it is {own.state.value}"


def _feasible(history: Sequence[Observation], judgement: Judgement) -> list[Observation]:
    return [
        obs
        for obs in history
        if obs.state is TrialState.COMPLETE and obs.measurement is not None and obs.number not in judgement.infeasible
    ]


def _search_speed(obs: Observation) -> float:
    assert obs.measurement is not None
    return obs.measurement.tokens_per_s_per_gpu


def _all_runs(obs: Observation) -> tuple[Measurement, ...]:
    return (*obs.confirmations, obs.measurement) if obs.measurement is not None else obs.confirmations


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
