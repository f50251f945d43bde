"""Compare the cost of a retune with the GPU-seconds that its result can save in the training run that a user has
declared. Pure functions.
"""

from shardtune.api_schemas.retuning.retunes import RetuneOutcome


def expected_saving(planned_gpu_seconds: float, speed_ratio: float) -> float:
    """GPU-seconds saved over a declared training run by a configuration that is `speed_ratio` times as fast: the run
    then takes 1 / `speed_ratio` of the time.
    """
    return planned_gpu_seconds * (1 - 1 / speed_ratio)


def realized_saving(
    planned_gpu_seconds: float | None, outcome: RetuneOutcome, speed_ratio: float | None
) -> float | None:
    """GPU-seconds that the result of an ended retune (repeated measurement of a recommendation) saves in the declared
    training run; None if no run was declared, or the retune had no usable result.
    """
    if planned_gpu_seconds is None:
        return None
    if outcome is RetuneOutcome.KEPT:
        return 0.0
    if outcome is not RetuneOutcome.REPLACED or speed_ratio is None or speed_ratio <= 0:
        return None
    return expected_saving(planned_gpu_seconds, speed_ratio)


def why_not_worthwhile(cost: float, planned_gpu_seconds: float | None, likely_gain: float | None) -> str | None:
    """Reason why a retune (repeated measurement of a recommendation) of this likely cost is not worthwhile. None if
    it may be worthwhile, or if no training run was declared.

    Without a likely gain, a retune is skipped only if it would cost as much as the whole declared run.
    """
    if planned_gpu_seconds is None:
        return None
    if likely_gain is None:
        max_saving, basis = planned_gpu_seconds, "even the whole of the declared run is"
    else:
        max_saving, basis = (
            expected_saving(planned_gpu_seconds, 1 + likely_gain),
            f"a gain of {likely_gain:.1%} would save",
        )
    if cost < max_saving:
        return None
    return f"not worth it: it is likely to cost {cost:.0f} GPU-seconds, and {basis} {max_saving:.0f} GPU-seconds"


def why_stop(
    spent: float, planned_gpu_seconds: float | None, likely_gain: float | None, max_gpu_seconds: float | None
) -> str | None:
    """Reason to stop a running retune (repeated measurement of a recommendation): its schedule's budget is used up,
    or its cost exceeds any possible saving. None if the retune may continue.
    """
    if max_gpu_seconds is not None and spent >= max_gpu_seconds:
        return f"stopped: it has used {spent:.0f} of the {max_gpu_seconds:g} GPU-seconds its schedule allows"
    # Without an expected gain the whole run is the bound: no result could save more.
    if planned_gpu_seconds is None:
        return None
    max_saving = planned_gpu_seconds if likely_gain is None else expected_saving(planned_gpu_seconds, 1 + likely_gain)
    if spent < max_saving:
        return None
    return (
        f"stopped: it has used {spent:.0f} GPU-seconds, as much as its result was expected to save ({max_saving:.0f})"
    )
