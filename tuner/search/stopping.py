"""When a search ends: a limit of the budget, or, with the default budget, when further gain is unlikely. And how a
budget grows when a study is extended."""

from collections.abc import Iterable, Sequence

from shardtune.api_schemas.studies.study import MOST_PAIRS, MOST_TRIALS, Budget
from shardtune.api_schemas.studies.study_changes import Extension
from shardtune.api_schemas.trials.trial import TrialOrigin, TrialReason, TrialState
from shardtune.tuner.history import Observation

MIN_TRIALS = 12
PATIENCE = 8
MIN_GAIN = 0.01
MIN_GUIDED = 6
"""Finished trials before an expected gain is believed: what it rests on is learnt from them."""

EXHAUSTED = "every configuration that may fit has been tried"
"""Why a search ended that more trials or time would not take further."""

_FINISHED = (TrialState.COMPLETE, TrialState.INFEASIBLE, TrialState.PRUNED)


def end_of_search(
    history: Sequence[Observation], budget: Budget, gpu_seconds: float, wall_seconds: float
) -> str | None:
    """Why no further trial should start, None while one should. Running trials count towards the number of trials."""
    most = budget.most_trials
    if len(history) >= most:
        return f"all {most} trials of the budget are used"
    if budget.max_gpu_seconds is not None and gpu_seconds >= budget.max_gpu_seconds:
        return f"the budget of {budget.max_gpu_seconds:g} GPU-seconds is used ({gpu_seconds:.0f})"
    if budget.max_wall_seconds is not None and wall_seconds >= budget.max_wall_seconds:
        return f"the budget of {budget.max_wall_seconds:g} seconds is used ({wall_seconds:.0f})"
    if budget.max_trials is not None or budget.planned_gpu_hours is not None:
        return None
    return _no_more_gain(history)


def no_gain_expected(reason: TrialReason | None, history: Sequence[Observation], budget: Budget) -> str | None:
    """Why the trial that the sampler likes best should not start, where no number of trials is given; None: it should.

    `reason`: None where nothing is predicted of it, by another sampler or for code of the user's own.
    """
    planned, finished = budget.planned_gpu_hours, sum(obs.state in _FINISHED for obs in history)
    if reason is None:
        return None if planned is None else _no_more_gain(history)
    if budget.max_trials is not None or finished < MIN_GUIDED:
        return None
    if planned is not None:
        return _costs_more(reason, planned, finished)
    if reason.expected_gain >= MIN_GAIN:
        return None
    return f"the next trial is expected to gain {reason.expected_gain:.1%}, less than {MIN_GAIN:.0%}, after {finished} trials"


def _costs_more(reason: TrialReason, planned: float, finished: int) -> str | None:
    """A run of so many GPU-hours that becomes `1 + g` times as fast saves `g / (1 + g)` of them."""
    saved, cost = (
        planned * reason.expected_gain / (1.0 + reason.expected_gain),
        (reason.expected_gpu_seconds or 0.0) / 3600,
    )
    if saved >= cost:
        return None
    return (
        f"the next trial is expected to save {saved:.2g} of the {planned:,g} GPU-hours planned, less than the {cost:.2g} "
        f"that it takes, after {finished} trials"
    )


def _no_more_gain(history: Sequence[Observation]) -> str | None:
    finished = [obs for obs in history if obs.state in _FINISHED]
    sampled = [obs for obs in finished if obs.origin == TrialOrigin.SAMPLER]
    if len(finished) < MIN_TRIALS or len(sampled) < PATIENCE:
        return None
    recent = {obs.number for obs in sampled[-PATIENCE:]}
    before = _best(obs for obs in finished if obs.number not in recent)
    after = _best(finished)
    if before == 0 or after > before * (1 + MIN_GAIN):
        return None
    return f"the last {PATIENCE} trials gained less than {MIN_GAIN:.0%}, after {len(finished)} trials"


def _best(observations: Iterable[Observation]) -> float:
    values = [
        obs.measurement.tokens_per_s_per_gpu
        for obs in observations
        if obs.state is TrialState.COMPLETE and obs.measurement is not None
    ]
    return max(values, default=0.0)


def extended(budget: Budget, more: Extension, trials: int, gpu_seconds: float, wall_seconds: float) -> Budget:
    """The budget with more of it: on top of the limit, or of what is spent where that is more.

    A budget without a number of trials allows exactly `trials` + `add_trials` from then on, but no fewer than before.

    Raises:
        ValueError: there is no such limit to raise, or none so high; names field, value and remedy.
    """
    values = budget.model_dump()
    if more.add_trials is not None:
        values |= {"max_trials": max(budget.max_trials or 0, trials) + more.add_trials, "planned_gpu_hours": None}
        _at_most("add_trials", more.add_trials, values["max_trials"], MOST_TRIALS)
    if more.add_pairs is not None:
        values["max_pairs"] = budget.max_pairs + more.add_pairs
        _at_most("add_pairs", more.add_pairs, values["max_pairs"], MOST_PAIRS)
    spent = {"gpu_seconds": gpu_seconds, "wall_seconds": wall_seconds}
    for unit, used in spent.items():
        added, limit = getattr(more, f"add_{unit}"), values[f"max_{unit}"]
        if added is None:
            continue
        if limit is None:
            raise ValueError(f"add_{unit} ({added:g}): the study's budget has no max_{unit} to raise; leave it out")
        values[f"max_{unit}"] = max(limit, used) + added
    return Budget(**values)


def _at_most(field: str, added: int, total: int, most: int) -> None:
    if total > most:
        raise ValueError(
            f"{field} ({added}) makes {total} in all, and there may be {most}; add {added - total + most} at most"
        )
