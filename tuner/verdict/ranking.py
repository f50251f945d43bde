"""Who wins: the baseline, whom to promote against it, and the result their fresh runs support."""

import math
from collections.abc import Sequence
from statistics import median

from shardtune.api_schemas.promotion import PromotionField
from shardtune.api_schemas.studies import Contender, Promotion, StudyResult, Verdict
from shardtune.api_schemas.trials import TrialOrigin, TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict import paired_test, settling
from shardtune.tuner.verdict.contenders import beside_defaults, contender
from shardtune.tuner.verdict.parity import Judgement
from shardtune.tuner.verdict.promotion import MOST_CANDIDATES, NEAR, Standing

_NOBODY_NEAR = f"nothing else came within {1 - NEAR:.0%} of the baseline's speed, so nothing was run in pairs with it"


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
    defaults = () if baseline.origin == TrialOrigin.BASELINE else _defaults(feasible) or (baseline.number,)
    return PromotionField(baseline.number, tuple(near), notes, defaults)


def search_speeds(history: Sequence[Observation]) -> dict[int, float]:
    """tokens_per_s_per_gpu of the search runs that were measured, by trial."""
    return {obs.number: _search_speed(obs) for obs in history if obs.measurement is not None}


def unbeaten(history: Sequence[Observation], field: PromotionField) -> StudyResult:
    """The answer where nothing but the baseline is feasible."""
    trial = next(obs for obs in history if obs.number == field.baseline)
    stands, notes = contender(trial), (*field.notes, *_which_default(trial, field), *_beside_others(trial))
    return StudyResult(best=stands, baseline=stands, speedup=None, verdict=Verdict.NOT_FASTER, notes=notes)


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
    trials, ratios = {obs.number: obs for obs in history}, standing.log_ratios
    stands = trials[standing.baseline]
    baseline = contender(stands)
    notes = (*field.notes, *_which_default(stands, field))
    spent = Promotion(
        candidates=field.candidates,
        pairs=len(ratios),
        runs=cost[0],
        gpu_seconds=cost[1],
        ratios=tuple(map(math.exp, ratios)),
    )
    if standing.challenger is None:
        alone = StudyResult(best=baseline, baseline=baseline, speedup=None, verdict=Verdict.NOT_FASTER, promotion=spent)
        return _beside_defaults(alone, history, (*notes, _NOBODY_NEAR))
    challenger, speedup = contender(trials[standing.challenger]), paired_test.speedup(ratios)
    verdict, disturbed = settling.verdict(ratios, speedup), _disturbed(stands, trials[standing.challenger])
    is_served = serves_challenger(field, ratios)
    found = StudyResult(
        best=challenger if is_served else baseline,
        baseline=baseline,
        candidate=None if is_served else challenger,
        speedup=speedup,
        verdict=verdict,
        undecided=settling.what_is_open(ratios, disturbed) if verdict is Verdict.UNDECIDED else None,
        promotion=spent,
    )
    return _beside_defaults(found, history, (*notes, *(() if speedup else (without_interval,))))


def serves_challenger(field: PromotionField, log_ratios: Sequence[float]) -> bool:
    """Whether the challenger is the answer.

    A user's baseline stands until it is beaten. Which default is the baseline is our choice, and chance must not make it
    the answer: there the better one in the pairs is served.
    """
    speedup = paired_test.speedup(log_ratios)
    is_faster = speedup is not None and speedup.ci95[0] > 1
    return is_faster or bool(field.defaults and log_ratios and median(log_ratios) > 0)


def _which_default(chosen: Observation, field: PromotionField) -> tuple[str, ...]:
    if chosen.origin != TrialOrigin.DEFAULT:
        return ()
    how = f"by fresh runs of {len(field.defaults)}" if len(field.defaults) > 1 else "the only feasible one that ran"
    return (f"baseline: {chosen.config.describe()}, the fastest documented default ({how})",)


def _beside_others(trial: Observation) -> tuple[str, ...]:
    """Where no fresh run stands beside it, the search's own says how fast the answer is."""
    seen = trial.measurement.conditions if trial.measurement is not None else None
    is_guiding = seen is not None and seen.neighbours > 0 and not trial.confirmations
    return ("its speed was measured beside other workers of its host: it may be faster alone",) if is_guiding else ()


def _beside_defaults(result: StudyResult, history: Sequence[Observation], notes: tuple[str, ...]) -> StudyResult:
    paired = result.baseline.trial_number if result.speedup is not None else None
    return result.model_copy(update={"against_defaults": beside_defaults(result.best, history, paired), "notes": notes})


def _disturbed(*pair: Observation) -> int:
    return sum(run.disturbed is not None for obs in pair for run in obs.confirmations)


def _defaults(feasible: Sequence[Observation]) -> tuple[int, ...]:
    return tuple(obs.number for obs in feasible if obs.origin == TrialOrigin.DEFAULT)


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
        return max(defaults, key=_search_speed), notes
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
