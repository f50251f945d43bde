"""Ranking: chooses the baseline and the finalists to compare with it, and derives the study's result from their
validation runs."""

import math
from collections.abc import Mapping, Sequence
from statistics import median

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.studies.budget import FEWEST_PAIRS
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.study_result import Contender, FinalComparison, StudyResult, Verdict
from shardtune.api_schemas.trials.trial import TrialOrigin, TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict import too_busy, undecided
from shardtune.tuner.verdict.comparison_blocks import NEAR_FRACTION
from shardtune.tuner.verdict.contenders import compare_with_defaults, contender
from shardtune.tuner.verdict.final_comparison import RankingState, finalists_among
from shardtune.tuner.verdict.parity import ParityGroups

NOTHING_ELSE = "no other configuration is feasible: there is nothing to compare"
"""Note of a result in which the baseline is the only feasible trial."""


def best_so_far(history: Sequence[Observation], parity_groups: ParityGroups) -> Contender | None:
    """Summary of the fastest trial by search runs among the trials that are not known to train differently from the
    study's reference; None where there is no such trial."""
    feasible = _feasible(history, parity_groups)
    return contender(max(feasible, key=_search_speed)) if feasible else None


def pick_finalists(history: Sequence[Observation], spec_has_baseline: bool, parity_groups: ParityGroups) -> Finalists:
    """Choose the finalists: the baseline and the fastest other feasible trials. Empty until the losses and norms of two
    trials' first steps agree."""
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
    baseline, notes = _choose_baseline(feasible)
    replaced = None
    if spec_has_baseline and baseline.origin != TrialOrigin.BASELINE:
        replaced = _replacement_reason(history, parity_groups)
        notes = (f"the given baseline was replaced: {replaced}", *notes)
    if len(feasible) == 1:
        return Finalists(baseline.number, (), (*notes, NOTHING_ELSE), replaced_baseline=replaced)
    candidates = finalists_among(search_speeds(feasible), disturbed_searches(feasible), baseline.number)
    defaults = () if baseline.origin == TrialOrigin.BASELINE else _default_numbers(feasible) or (baseline.number,)
    return Finalists(baseline.number, candidates, notes, defaults, replaced)


def search_speeds(history: Sequence[Observation]) -> dict[int, float]:
    """Speed (tokens_per_s_per_gpu) of each measured search run, by trial number."""
    return {obs.number: _search_speed(obs) for obs in history if obs.measurement is not None}


def disturbed_searches(history: Sequence[Observation]) -> frozenset[int]:
    """Numbers of the trials whose search run counts although other programs disturbed its machine."""
    return frozenset(obs.number for obs in history if obs.is_disturbed)


def result_of_baseline(history: Sequence[Observation], field: Finalists) -> StudyResult:
    """Result of a study in which the baseline is the only feasible trial, so that no pair of runs compares anything."""
    trials = {obs.number: obs for obs in history}
    trial = next(obs for obs in history if obs.number == field.baseline)
    best, notes = contender(trial), (*field.notes, *_default_note(trial, field, trials), *_co_tenant_note(trial))
    counts = _search_run_counts(history)
    return StudyResult(
        best=best,
        baseline=best,
        replaced_baseline=field.replaced_baseline,
        speedup=None,
        verdict=Verdict.UNDECIDED,
        notes=notes,
        **counts,
    )


def result(
    history: Sequence[Observation],
    field: Finalists,
    ranking_state: RankingState,
    cost: tuple[int, float],
    number: int = 0,
) -> StudyResult:
    """Result of a study after its final comparison, the `number`-th of the study.

    `cost`: runs and GPU-seconds of the final comparison.
    """
    trials, pairs = {obs.number: obs for obs in history}, ranking_state.pairs
    baseline_trial = trials[ranking_state.baseline]
    assert ranking_state.challenger is not None, "screening always ends with a challenger"
    baseline, challenger = contender(baseline_trial), contender(trials[ranking_state.challenger])
    speedup = ranking_state.speedup
    verdict = undecided.verdict(pairs, speedup, ranking_state.is_far_behind)
    is_recommended = recommends_challenger(field, ranking_state)
    study_result = StudyResult(
        best=challenger if is_recommended else baseline,
        baseline=baseline,
        replaced_baseline=field.replaced_baseline,
        candidate=None if is_recommended else challenger,
        speedup=speedup,
        verdict=verdict,
        **_search_run_counts(history),
        undecided=undecided.open_verdict(pairs) if verdict is Verdict.UNDECIDED else None,
        final_comparison=FinalComparison(
            number=number,
            candidates=_repeated((*field.candidates, challenger.trial_number), trials),
            pairs=len(pairs),
            disturbed_pairs=sum(pair.disturbed_runs > 0 for pair in pairs),
            runs=cost[0],
            uneven_pairs=len(ranking_state.uneven_pairs),
            disturbed_counted_runs=sum(pair.disturbed_runs for pair in pairs),
            gpu_seconds=cost[1],
            ratios=tuple(math.exp(pair.log_ratio) for pair in pairs),
        ),
    )
    study_result = too_busy.checked(study_result, history, pairs, ranking_state.uneven_pairs)
    notes = (
        *field.notes,
        *_default_note(baseline_trial, field, trials),
        *_comparison_notes(ranking_state, study_result),
    )
    return _with_default_comparison(study_result, history, notes)


def _search_run_counts(history: Sequence[Observation]) -> dict[str, int]:
    """Number of measured search runs, and number of those that other programs disturbed, as fields of a result."""
    measured = [obs for obs in history if obs.is_measured]
    return {"search_runs": len(measured), "disturbed_search_runs": sum(obs.is_disturbed for obs in measured)}


def _repeated(numbers: Sequence[int], trials: Mapping[int, Observation]) -> tuple[int, ...]:
    """Numbers of the trials that have a validation run, fastest by their search runs first."""
    repeated = {number for number in numbers if trials[number].validation_runs}
    return tuple(sorted(repeated, key=lambda number: -_search_speed(trials[number])))


def _comparison_notes(ranking_state: RankingState, result: StudyResult) -> tuple[str, ...]:
    """Notes for the user on why a comparison ended with fewer pairs than the sign test needs."""
    if ranking_state.is_far_behind:
        return (_far_behind_note(ranking_state),)
    if ranking_state.is_settled_early:
        # Their ratios may still lie far apart, where the gain is larger.
        is_won = result.verdict is Verdict.CONFIRMED
        shown = "the whole interval of the speed-up lies above 1" if is_won else "they rule out a gain of 5 %"
        return (f"{len(ranking_state.pairs)} pairs were enough: none of their runs was disturbed, and {shown}",)
    if result.speedup is not None or result.too_busy is not None:
        return ()
    count, lost = len(ranking_state.pairs), ranking_state.lost_blocks
    note = f"too few pairs for an interval: {count} of at least {FEWEST_PAIRS}"
    if lost:
        note += f"; {lost} block{'s' if lost > 1 else ''} did not count, because the runs were on different workers or hosts"
    return (note,)


def _far_behind_note(ranking_state: RankingState) -> str:
    ratios = [math.exp(pair.log_ratio) for pair in ranking_state.pairs if not pair.disturbed_runs]
    runs = counted(len(ratios), "pair")
    return (
        f"trial {ranking_state.challenger} reached at most {max(ratios):.0%} of the baseline's speed in {runs} "
        f"undisturbed by others, below {NEAR_FRACTION:.0%}, so no more pairs were run"
    )


def recommends_challenger(field: Finalists, ranking_state: RankingState) -> bool:
    """Whether the study recommends the challenger rather than the baseline."""
    # A user's baseline stays until it is beaten. Which default is the baseline is our choice, and chance must not make
    # it the answer: of two defaults the one that is faster in the pairs is recommended.
    ratios, speedup = ranking_state.log_ratios, ranking_state.speedup
    is_faster = undecided.verdict(ranking_state.pairs, speedup, ranking_state.is_far_behind) is Verdict.CONFIRMED
    return is_faster or bool(field.defaults and ratios and median(ratios) > 0)


def _default_note(chosen: Observation, field: Finalists, trials: Mapping[int, Observation]) -> tuple[str, ...]:
    if chosen.origin != TrialOrigin.DEFAULT:
        return ()
    repeated = sum(bool(trials[number].validation_runs) for number in field.defaults)
    # With validation runs of one default alone, its search run chose it.
    selection = f"by validation runs of {repeated} defaults" if repeated > 1 else "by its search run"
    if len(field.defaults) <= 1:
        selection = "the only feasible one that ran"
    return (f"baseline: {chosen.config.describe()}, the fastest documented default ({selection})",)


def _co_tenant_note(trial: Observation) -> tuple[str, ...]:
    """Note for the user that the recommended trial has no validation run and that other programs ran on the machine
    during its search run."""
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
    feasible: Sequence[Observation],
) -> tuple[Observation, tuple[str, ...]]:
    given_baseline = next((obs for obs in feasible if obs.origin == TrialOrigin.BASELINE), None)
    if given_baseline is not None:
        return given_baseline, ()
    defaults = [obs for obs in feasible if obs.origin == TrialOrigin.DEFAULT]
    if defaults:
        return max(defaults, key=_search_speed), ()
    first = min(feasible, key=lambda obs: obs.number)
    note = f"no documented default is feasible; the baseline is trial {first.number}, the first feasible one"
    return first, (note,)


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
