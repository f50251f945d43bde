"""Stopping: when a search ends, by a limit of the budget or, with the default budget, when further gain is unlikely.

The module also extends the budget of a study that has ended.
"""

from collections.abc import Iterable, Sequence

from shardtune.api_schemas.formatting import stated
from shardtune.api_schemas.studies.budget import MOST_PAIRS, MOST_TRIALS, Budget
from shardtune.api_schemas.studies.reasons import StudyReason, StudyReasonCode
from shardtune.api_schemas.studies.study_changes import Extension
from shardtune.api_schemas.trials.trial import TrialOrigin, TrialReason, TrialState
from shardtune.tuner.history import Observation

MIN_TRIALS = 12
PATIENCE = 8
MIN_GAIN = 0.01
MIN_GUIDED = 6
"""Minimum number of finished trials before a small expected gain may end a search, because the expectation is learnt
from these trials."""

ALL_TRIED = StudyReason(code=StudyReasonCode.ALL_TRIED, text="every configuration that may fit has been tried")
"""Reason to stop a search that has tried every configuration; more trials or time would not extend it."""

_FINISHED = (TrialState.COMPLETE, TrialState.INFEASIBLE, TrialState.PRUNED)


def stop_reason(
    history: Sequence[Observation], budget: Budget, gpu_seconds: float, wall_seconds: float
) -> StudyReason | None:
    """Reason to start no further trial in a search; None if another one may start. Running trials count towards the
    limit on trials."""
    reason = used_up(budget, len(history), gpu_seconds, wall_seconds)
    if reason is not None or budget.max_trials is not None or budget.planned_gpu_hours is not None:
        return reason
    return _no_more_gain(history)


def used_up(budget: Budget, trials: int, gpu_seconds: float, wall_seconds: float) -> StudyReason | None:
    """Reason to start no further trial because a limit of the budget is reached; None if no limit is reached."""
    if trials >= budget.most_trials:
        most = budget.most_trials
        used = f"all {most} trials of the budget are used" if most > 1 else "the only trial of the budget is used"
        return _reason(StudyReasonCode.TRIALS_USED, used)
    if budget.max_gpu_seconds is not None and gpu_seconds >= budget.max_gpu_seconds:
        return _reason(
            StudyReasonCode.GPU_SECONDS_USED,
            f"the budget of {stated(budget.max_gpu_seconds)} GPU-seconds is used",
            f"{gpu_seconds:.0f}",
        )
    if budget.max_wall_seconds is not None and wall_seconds >= budget.max_wall_seconds:
        return _reason(
            StudyReasonCode.WALL_SECONDS_USED,
            f"the budget of {stated(budget.max_wall_seconds)} seconds is used",
            f"{wall_seconds:.0f}",
        )
    return None


def no_gain_reason(reason: TrialReason | None, history: Sequence[Observation], budget: Budget) -> StudyReason | None:
    """Reason not to start the trial that the sampler prefers, because its expected gain is too small; None to start it.
    The check applies only if the budget sets no number of trials.

    `reason`: the sampler's expectation. It is None from a sampler that computes none, and for the user's own training
    code.
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
    return _reason(
        StudyReasonCode.LITTLE_GAIN,
        f"the next trial is expected to gain {reason.expected_gain:.1%}, less than {MIN_GAIN:.0%}, after {finished} trials",
    )


def _costs_more(reason: TrialReason, planned: float, finished: int) -> StudyReason | None:
    """Reason to stop where a trial costs more GPU-hours than it is expected to save in the planned run; None if it is
    expected to pay off."""
    # A run of so many GPU-hours that becomes 1 + g times as fast saves g / (1 + g) of them.
    saved, cost = (
        planned * reason.expected_gain / (1.0 + reason.expected_gain),
        (reason.expected_gpu_seconds or 0.0) / 3600,
    )
    if saved >= cost:
        return None
    return _reason(
        StudyReasonCode.COSTS_MORE,
        f"the next trial is expected to save {saved:.2g} of the {planned:,.12g} GPU-hours planned, less than the {cost:.2g} "
        f"that it takes, after {finished} trials",
    )


def _no_more_gain(history: Sequence[Observation]) -> StudyReason | None:
    finished = [obs for obs in history if obs.state in _FINISHED]
    sampled = [obs for obs in finished if obs.origin == TrialOrigin.SAMPLER]
    if len(finished) < MIN_TRIALS or len(sampled) < PATIENCE:
        return None
    recent = {obs.number for obs in sampled[-PATIENCE:]}
    before = _best(obs for obs in finished if obs.number not in recent)
    after = _best(finished)
    # While no earlier trial has completed, there is no speed to compare a gain with.
    if before == 0 or after > before * (1 + MIN_GAIN):
        return None
    return _reason(
        StudyReasonCode.LITTLE_GAIN,
        f"the last {PATIENCE} trials gained less than {MIN_GAIN:.0%}, after {len(finished)} trials",
    )


def _reason(code: StudyReasonCode, text: str, details: str = "") -> StudyReason:
    return StudyReason(code=code, text=text, details=details)


def _best(observations: Iterable[Observation]) -> float:
    values = [
        obs.measurement.tokens_per_s_per_gpu
        for obs in observations
        if obs.state is TrialState.COMPLETE and obs.measurement is not None
    ]
    return max(values, default=0.0)


def extend_budget(budget: Budget, extension: Extension, trials: int, gpu_seconds: float, wall_seconds: float) -> Budget:
    """Extend a study's budget: raise a limit by the extension, counted from the limit or from the amount already spent,
    whichever is higher.

    If the budget set no number of trials, it then allows `trials` (those that have run) + `add_trials`.

    Raises:
        ValueError: the budget has no such limit, or the limit may not be so high; names field, value and remedy.
    """
    values = budget.model_dump()
    if extension.add_trials is not None:
        values |= {"max_trials": max(budget.max_trials or 0, trials) + extension.add_trials, "planned_gpu_hours": None}
        _check_limit("add_trials", extension.add_trials, values["max_trials"], MOST_TRIALS)
    if extension.add_pairs is not None:
        values["max_pairs"] = budget.max_pairs + extension.add_pairs
        _check_limit("add_pairs", extension.add_pairs, values["max_pairs"], MOST_PAIRS)
    spent = {"gpu_seconds": gpu_seconds, "wall_seconds": wall_seconds}
    for unit, used in spent.items():
        added, limit = getattr(extension, f"add_{unit}"), values[f"max_{unit}"]
        if added is None:
            continue
        if limit is None:
            raise ValueError(
                f"add_{unit} ({stated(added)}): the study's budget has no max_{unit} to raise; leave it out"
            )
        # A limit may have been overrun by the trials that ran when it was reached.
        values[f"max_{unit}"] = max(limit, used) + added
    return Budget(**values)


def _check_limit(field: str, added: int, total: int, maximum: int) -> None:
    if total > maximum:
        raise ValueError(
            f"{field} ({added}) makes {total} in all, and there may be {maximum}; add {added - total + maximum} at most"
        )
