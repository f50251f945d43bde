"""Ranking: chooses the baseline and the finalists to compare with it, and derives the study's result from their
validation runs."""

import math
from collections.abc import Sequence
from statistics import median

from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.study import Contender, FinalComparison, StudyResult, Verdict
from shardtune.api_schemas.trials.trial import TrialOrigin, TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict import paired_test, too_busy, undecided
from shardtune.tuner.verdict.contenders import compare_with_defaults, contender
from shardtune.tuner.verdict.final_comparison import MAX_CANDIDATES, NEAR_FRACTION, RankingState
from shardtune.tuner.verdict.parity import ParityGroups

_NOBODY_NEAR = (
    f"nothing else came within {1 - NEAR_FRACTION:.0%} of the baseline's speed, so nothing was run in pairs with it"
)


def best_so_far(history: Sequence[Observation], parity_groups: ParityGroups) -> Contender | None:
    """Summary of the fastest trial by search runs among the trials not known to leave the reference trajectory; None
    where there is no such trial."""
    feasible = _feasible(history, parity_groups)
    return contender(max(feasible, key=_search_speed)) if feasible else None


def pick_finalists(history: Sequence[Observation], spec_has_baseline: bool, parity_groups: ParityGroups) -> Finalists:
    """Choose the finalists: the baseline and the fastest other feasible trials. Empty until two trials' trajectories
    agree."""
    # Without a reference no trial is known to train the right model, however fast it is.
    if parity_groups.reference is None:
        measured = any(obs.state is TrialState.COMPLETE for obs in history)
        reason = (
            "no two trials of different backends train the same thing" if measured else "no configuration is feasible"
        )
        return Finalists(None, (), (f"no winner: {reason}",))
    feasible = _feasible(history, parity_groups)
    if not feasible:
        return Finalists(None, (), ("no winner: no configuration is feasible",))
    baseline, notes = _choose_baseline(history, feasible, spec_has_baseline, parity_groups)
    challengers = sorted((obs for obs in feasible if obs.number != baseline.number), key=_search_speed, reverse=True)
    if not challengers:
        return Finalists(
            baseline.number, (), (*notes, "no other configuration is feasible: there is nothing to compare")
        )
    near = [
        obs.number
        for obs in challengers[:MAX_CANDIDATES]
        if _search_speed(obs) >= NEAR_FRACTION * _search_speed(challengers[0])
    ]
    defaults = () if baseline.origin == TrialOrigin.BASELINE else _default_numbers(feasible) or (baseline.number,)
    return Finalists(baseline.number, tuple(near), notes, defaults)


def search_speeds(history: Sequence[Observation]) -> dict[int, float]:
    """Speed (tokens_per_s_per_gpu) of each measured search run, by trial number."""
    return {obs.number: _search_speed(obs) for obs in history if obs.measurement is not None}


def result_of_baseline(history: Sequence[Observation], field: Finalists) -> StudyResult:
    """Result of a study in which the baseline is the only feasible trial."""
    trial = next(obs for obs in history if obs.number == field.baseline)
    best, notes = contender(trial), (*field.notes, *_default_note(trial, field), *_co_tenant_note(trial))
    return StudyResult(best=best, baseline=best, speedup=None, verdict=Verdict.NOT_FASTER, notes=notes)


def result(
    history: Sequence[Observation],
    field: Finalists,
    ranking_state: RankingState,
    cost: tuple[int, float],
    missing_interval_note: str = "too few pairs for an interval: blocks were interrupted and ran on different workers",
) -> StudyResult:
    """Result of a study after its final comparison.

    `cost`: runs and GPU-seconds of the final comparison. `missing_interval_note`: reason to report where the pairs are
    too few for an interval.
    """
    trials, ratios = {obs.number: obs for obs in history}, ranking_state.log_ratios
    baseline_trial = trials[ranking_state.baseline]
    baseline = contender(baseline_trial)
    notes = (*field.notes, *_default_note(baseline_trial, field))
    comparison = FinalComparison(
        candidates=field.candidates,
        pairs=len(ratios),
        runs=cost[0],
        gpu_seconds=cost[1],
        ratios=tuple(map(math.exp, ratios)),
        uneven_pairs=len(ranking_state.uneven_loads),
        disturbed_runs=too_busy.count_disturbed(ranking_state.even_loads),
    )
    if ranking_state.challenger is None:
        baseline_result = StudyResult(
            best=baseline, baseline=baseline, speedup=None, verdict=Verdict.NOT_FASTER, final_comparison=comparison
        )
        baseline_result = too_busy.checked(baseline_result, history, (), ())
        return _with_default_comparison(baseline_result, history, (*notes, _NOBODY_NEAR))
    challenger, speedup = contender(trials[ranking_state.challenger]), paired_test.speedup(ratios)
    verdict = undecided.verdict(ratios, speedup)
    is_recommended = recommends_challenger(field, ratios)
    study_result = StudyResult(
        best=challenger if is_recommended else baseline,
        baseline=baseline,
        candidate=None if is_recommended else challenger,
        speedup=speedup,
        verdict=verdict,
        undecided=undecided.open_verdict(ratios, comparison.disturbed_runs) if verdict is Verdict.UNDECIDED else None,
        final_comparison=comparison,
    )
    study_result = too_busy.checked(study_result, history, ranking_state.even_loads, ranking_state.uneven_loads)
    return _with_default_comparison(
        study_result, history, (*notes, *(() if speedup or study_result.too_busy else (missing_interval_note,)))
    )


def recommends_challenger(field: Finalists, log_ratios: Sequence[float]) -> bool:
    """Whether the study recommends the challenger rather than the baseline."""
    # A user's baseline stays until it is beaten. Which default is the baseline is our choice, and chance must not make
    # it the answer: of two defaults the one that is faster in the pairs is recommended.
    speedup = paired_test.speedup(log_ratios)
    is_faster = speedup is not None and speedup.ci95[0] > 1
    return is_faster or bool(field.defaults and log_ratios and median(log_ratios) > 0)


def _default_note(chosen: Observation, field: Finalists) -> tuple[str, ...]:
    if chosen.origin != TrialOrigin.DEFAULT:
        return ()
    selection = (
        f"by validation runs of {len(field.defaults)}" if len(field.defaults) > 1 else "the only feasible one that ran"
    )
    return (f"baseline: {chosen.config.describe()}, the fastest documented default ({selection})",)


def _co_tenant_note(trial: Observation) -> tuple[str, ...]:
    """Note for the user that the recommended trial has no validation run and its search run was measured next to
    co-tenants."""
    conditions = trial.measurement.conditions if trial.measurement is not None else None
    # Search runs may share their host with other workers, validation runs never do.
    is_shared = conditions is not None and conditions.co_tenants > 0 and not trial.validation_runs
    return ("its speed was measured beside other workers of its host: it may be faster alone",) if is_shared else ()


def _with_default_comparison(
    result: StudyResult, history: Sequence[Observation], notes: tuple[str, ...]
) -> StudyResult:
    paired = result.baseline.trial_number if result.speedup is not None else None
    return result.model_copy(
        update={"against_defaults": compare_with_defaults(result.best, history, paired), "notes": notes}
    )


def _default_numbers(feasible: Sequence[Observation]) -> tuple[int, ...]:
    return tuple(obs.number for obs in feasible if obs.origin == TrialOrigin.DEFAULT)


def _choose_baseline(
    history: Sequence[Observation],
    feasible: Sequence[Observation],
    spec_has_baseline: bool,
    parity_groups: ParityGroups,
) -> tuple[Observation, tuple[str, ...]]:
    given_baseline = next((obs for obs in feasible if obs.origin == TrialOrigin.BASELINE), None)
    if given_baseline is not None:
        return given_baseline, ()
    defaults = [obs for obs in feasible if obs.origin == TrialOrigin.DEFAULT]
    notes: tuple[str, ...] = ()
    if spec_has_baseline:
        notes = (f"the given baseline was replaced: {_replacement_reason(history, parity_groups)}",)
    if defaults:
        return max(defaults, key=_search_speed), notes
    first = min(feasible, key=lambda obs: obs.number)
    note = f"no documented default is feasible; the baseline is trial {first.number}, the first feasible one"
    return first, (*notes, note)


def _replacement_reason(history: Sequence[Observation], parity_groups: ParityGroups) -> str:
    given_baseline = next((obs for obs in history if obs.origin == TrialOrigin.BASELINE), None)
    if given_baseline is None:
        return "the memory gate rejected it"
    if given_baseline.number in parity_groups.infeasible:
        return parity_groups.infeasible[given_baseline.number]
    return (
        given_baseline.failure.message if given_baseline.failure is not None else f"it is {given_baseline.state.value}"
    )


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
