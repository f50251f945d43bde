"""Who wins: the baseline, whom to promote against it, and the result their validation runs support."""

import math
from collections.abc import Sequence
from statistics import median

from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.study import Contender, FinalComparison, StudyResult, Verdict
from shardtune.api_schemas.trials.trial import TrialOrigin, TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict import paired_test, undecided
from shardtune.tuner.verdict.contenders import beside_defaults, contender
from shardtune.tuner.verdict.final_comparison import MOST_CANDIDATES, NEAR, RankingState
from shardtune.tuner.verdict.parity import ParityGroups

_NOBODY_NEAR = f"nothing else came within {1 - NEAR:.0%} of the baseline's speed, so nothing was run in pairs with it"


def best_so_far(history: Sequence[Observation], parity_groups: ParityGroups) -> Contender | None:
    """The fastest trial by search runs that trains the right thing, as far as is known."""
    feasible = _feasible(history, parity_groups)
    return contender(max(feasible, key=_search_speed)) if feasible else None


def pick(history: Sequence[Observation], spec_has_baseline: bool, parity_groups: ParityGroups) -> Finalists:
    """Choose the baseline and the fastest other feasible trials. Nothing is picked until two trajectories agree."""
    if parity_groups.reference is None:
        measured = any(obs.state is TrialState.COMPLETE for obs in history)
        reason = (
            "no two trials of different backends train the same thing" if measured else "no configuration is feasible"
        )
        return Finalists(None, (), (f"no winner: {reason}",))
    feasible = _feasible(history, parity_groups)
    if not feasible:
        return Finalists(None, (), ("no winner: no configuration is feasible",))
    baseline, notes = _baseline(history, feasible, spec_has_baseline, parity_groups)
    others = sorted((obs for obs in feasible if obs.number != baseline.number), key=_search_speed, reverse=True)
    if not others:
        return Finalists(
            baseline.number, (), (*notes, "no other configuration is feasible: there is nothing to compare")
        )
    near = [obs.number for obs in others[:MOST_CANDIDATES] if _search_speed(obs) >= NEAR * _search_speed(others[0])]
    defaults = () if baseline.origin == TrialOrigin.BASELINE else _defaults(feasible) or (baseline.number,)
    return Finalists(baseline.number, tuple(near), notes, defaults)


def search_speeds(history: Sequence[Observation]) -> dict[int, float]:
    """tokens_per_s_per_gpu of the search runs that were measured, by trial."""
    return {obs.number: _search_speed(obs) for obs in history if obs.measurement is not None}


def unbeaten(history: Sequence[Observation], field: Finalists) -> StudyResult:
    """The answer where nothing but the baseline is feasible."""
    trial = next(obs for obs in history if obs.number == field.baseline)
    stands, notes = contender(trial), (*field.notes, *_which_default(trial, field), *_beside_others(trial))
    return StudyResult(best=stands, baseline=stands, speedup=None, verdict=Verdict.NOT_FASTER, notes=notes)


def result(
    history: Sequence[Observation],
    field: Finalists,
    ranking_state: RankingState,
    cost: tuple[int, float],
    without_interval: str = "too few pairs for an interval: blocks were interrupted and ran on different workers",
) -> StudyResult:
    """The answer of a study after its final comparison, whose runs and GPU-seconds are its `cost`.

    `without_interval` says why there are too few pairs, should that be so.
    """
    trials, ratios = {obs.number: obs for obs in history}, ranking_state.log_ratios
    stands = trials[ranking_state.baseline]
    baseline = contender(stands)
    notes = (*field.notes, *_which_default(stands, field))
    spent = FinalComparison(
        candidates=field.candidates,
        pairs=len(ratios),
        runs=cost[0],
        gpu_seconds=cost[1],
        ratios=tuple(map(math.exp, ratios)),
    )
    if ranking_state.challenger is None:
        alone = StudyResult(
            best=baseline, baseline=baseline, speedup=None, verdict=Verdict.NOT_FASTER, final_comparison=spent
        )
        return _beside_defaults(alone, history, (*notes, _NOBODY_NEAR))
    challenger, speedup = contender(trials[ranking_state.challenger]), paired_test.speedup(ratios)
    verdict, disturbed = undecided.verdict(ratios, speedup), _disturbed(stands, trials[ranking_state.challenger])
    is_served = serves_challenger(field, ratios)
    found = StudyResult(
        best=challenger if is_served else baseline,
        baseline=baseline,
        candidate=None if is_served else challenger,
        speedup=speedup,
        verdict=verdict,
        undecided=undecided.what_is_open(ratios, disturbed) if verdict is Verdict.UNDECIDED else None,
        final_comparison=spent,
    )
    return _beside_defaults(found, history, (*notes, *(() if speedup else (without_interval,))))


def serves_challenger(field: Finalists, log_ratios: Sequence[float]) -> bool:
    """Whether the challenger is the answer.

    A user's baseline stands until it is beaten. Which default is the baseline is our choice, and chance must not make it
    the answer: there the better one in the pairs is served.
    """
    speedup = paired_test.speedup(log_ratios)
    is_faster = speedup is not None and speedup.ci95[0] > 1
    return is_faster or bool(field.defaults and log_ratios and median(log_ratios) > 0)


def _which_default(chosen: Observation, field: Finalists) -> tuple[str, ...]:
    if chosen.origin != TrialOrigin.DEFAULT:
        return ()
    how = (
        f"by validation runs of {len(field.defaults)}" if len(field.defaults) > 1 else "the only feasible one that ran"
    )
    return (f"baseline: {chosen.config.describe()}, the fastest documented default ({how})",)


def _beside_others(trial: Observation) -> tuple[str, ...]:
    """Where no validation run stands beside it, the search's own says how fast the answer is."""
    seen = trial.measurement.conditions if trial.measurement is not None else None
    is_guiding = seen is not None and seen.neighbours > 0 and not trial.validation_runs
    return ("its speed was measured beside other workers of its host: it may be faster alone",) if is_guiding else ()


def _beside_defaults(result: StudyResult, history: Sequence[Observation], notes: tuple[str, ...]) -> StudyResult:
    paired = result.baseline.trial_number if result.speedup is not None else None
    return result.model_copy(update={"against_defaults": beside_defaults(result.best, history, paired), "notes": notes})


def _disturbed(*pair: Observation) -> int:
    return sum(run.disturbed is not None for obs in pair for run in obs.validation_runs)


def _defaults(feasible: Sequence[Observation]) -> tuple[int, ...]:
    return tuple(obs.number for obs in feasible if obs.origin == TrialOrigin.DEFAULT)


def _baseline(
    history: Sequence[Observation],
    feasible: Sequence[Observation],
    spec_has_baseline: bool,
    parity_groups: ParityGroups,
) -> tuple[Observation, tuple[str, ...]]:
    own = next((obs for obs in feasible if obs.origin == TrialOrigin.BASELINE), None)
    if own is not None:
        return own, ()
    defaults = [obs for obs in feasible if obs.origin == TrialOrigin.DEFAULT]
    notes: tuple[str, ...] = ()
    if spec_has_baseline:
        notes = (f"the given baseline was replaced: {_why_not(history, parity_groups)}",)
    if defaults:
        return max(defaults, key=_search_speed), notes
    first = min(feasible, key=lambda obs: obs.number)
    note = f"no documented default is feasible; trial {first.number}, the first that was, stands as baseline"
    return first, (*notes, note)


def _why_not(history: Sequence[Observation], parity_groups: ParityGroups) -> str:
    own = next((obs for obs in history if obs.origin == TrialOrigin.BASELINE), None)
    if own is None:
        return "the memory gate rejected it"
    if own.number in parity_groups.infeasible:
        return parity_groups.infeasible[own.number]
    return own.failure.message if own.failure is not None else f"it is {own.state.value}"


def _feasible(history: Sequence[Observation], parity_groups: ParityGroups) -> list[Observation]:
    return [
        obs
        for obs in history
        if obs.state is TrialState.COMPLETE
        and obs.measurement is not None
        and obs.number not in parity_groups.infeasible
    ]


def _search_speed(obs: Observation) -> float:
    assert obs.measurement is not None
    return obs.measurement.tokens_per_s_per_gpu
