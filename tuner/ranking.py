"""Who wins: the baseline, its challenger, and the result their confirmation runs support."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from api_schemas.measurements import Measurement
from api_schemas.studies import Contender, Speedup, StudyResult, Verdict
from api_schemas.trials import TrialState
from tuner import confirmation
from tuner.history import Observation
from tuner.numerics import Judgement


@dataclass(frozen=True)
class Match:
    """The two trials of the confirmation runs."""

    baseline: int | None
    """None: no configuration is feasible."""
    challenger: int | None
    """None: the baseline is the only feasible one."""
    notes: tuple[str, ...] = ()


def contender(obs: Observation) -> Contender:
    """A measured trial as shown to a user; its figures are those of the confirmation runs where it has them."""
    runs = obs.confirmations or ((obs.measurement,) if obs.measurement is not None else ())
    assert runs, "a contender has been measured"
    mfus = [run.mfu for run in runs if run.mfu is not None]
    return Contender(
        trial_number=obs.number,
        config=obs.config,
        description=obs.config.describe(),
        tokens_per_s_per_gpu=median(run.tokens_per_s_per_gpu for run in runs),
        peak_allocated_gib=_largest(run.memory.peak_allocated_gib for run in _all_runs(obs)),
        peak_reserved_gib=_largest(run.memory.peak_reserved_gib for run in _all_runs(obs)),
        mfu=median(mfus) if mfus else None,
        runs=len(runs),
    )


def best_so_far(history: Sequence[Observation], judgement: Judgement) -> Contender | None:
    """The fastest trial by search runs that trains the right thing, as far as is known."""
    feasible = _feasible(history, judgement)
    return contender(max(feasible, key=_search_speed)) if feasible else None


def pick(history: Sequence[Observation], spec_has_baseline: bool, judgement: Judgement) -> Match:
    """Choose the baseline and the fastest other feasible trial. Nothing is picked until two trajectories agree."""
    if judgement.reference is None:
        measured = any(obs.state is TrialState.COMPLETE for obs in history)
        reason = (
            "no two trials of different backends train the same thing" if measured else "no configuration is feasible"
        )
        return Match(None, None, (f"nothing is crowned: {reason}",))
    feasible = _feasible(history, judgement)
    if not feasible:
        return Match(None, None, ("nothing is crowned: no configuration is feasible",))
    baseline, notes = _baseline(history, feasible, spec_has_baseline, judgement)
    others = [obs for obs in feasible if obs.number != baseline.number]
    if not others:
        return Match(baseline.number, None, (*notes, "no other configuration is feasible: there is nothing to compare"))
    return Match(baseline.number, max(others, key=_search_speed).number, notes)


def result(history: Sequence[Observation], match: Match, judgement: Judgement) -> StudyResult:
    """The answer of a study after its confirmation runs.

    Raises:
        ValueError: no configuration is feasible.
    """
    trials = {obs.number: obs for obs in history}
    if match.baseline is None:
        raise ValueError("; ".join(match.notes) or "no configuration is feasible; give the model more memory or ranks")
    baseline = trials[match.baseline]
    notes = match.notes
    if match.challenger is None:
        return _unbeaten(baseline, None, None, notes)
    challenger = trials[match.challenger]
    if challenger.number in judgement.infeasible or challenger.state is not TrialState.COMPLETE:
        return _unbeaten(baseline, None, None, (*notes, f"trial {challenger.number} did not stay feasible"))
    if min(len(baseline.confirmations), len(challenger.confirmations)) < 2:
        note = "too few confirmation runs ended well for an interval"
        return _unbeaten(baseline, challenger, None, (*notes, note))
    speedup = confirmation.speedup(baseline.confirmations, challenger.confirmations)
    if speedup.ci95[0] <= 1:
        return _unbeaten(baseline, challenger, speedup, notes)
    return StudyResult(
        best=contender(challenger),
        baseline=contender(baseline),
        speedup=speedup,
        verdict=Verdict.CONFIRMED,
        notes=notes,
    )


def _unbeaten(
    baseline: Observation, challenger: Observation | None, speedup: Speedup | None, notes: tuple[str, ...]
) -> StudyResult:
    stands = contender(baseline)
    return StudyResult(
        best=stands,
        baseline=stands,
        candidate=contender(challenger) if challenger is not None else None,
        speedup=speedup,
        verdict=Verdict.NO_SIGNIFICANT_IMPROVEMENT,
        notes=notes,
    )


def _baseline(
    history: Sequence[Observation], feasible: Sequence[Observation], spec_has_baseline: bool, judgement: Judgement
) -> tuple[Observation, tuple[str, ...]]:
    own = next((obs for obs in feasible if obs.origin == "baseline"), None)
    if own is not None:
        return own, ()
    defaults = [obs for obs in feasible if obs.origin == "default"]
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
    own = next((obs for obs in history if obs.origin == "baseline"), None)
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
