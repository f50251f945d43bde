"""The ledger of a retune: what it costs against what its answer can save over the training run it is for. Pure rules."""

from shardtune.api_schemas.retuning.retunes import RetuneOutcome


def saving(planned_gpu_seconds: float, speed_ratio: float) -> float:
    """GPU-seconds saved over a declared run: at `speed_ratio` times the speed it takes 1 / `speed_ratio` of the time."""
    return planned_gpu_seconds * (1 - 1 / speed_ratio)


def booked(planned_gpu_seconds: float | None, outcome: RetuneOutcome, speed_ratio: float | None) -> float | None:
    """What an ended retune saves; None where no run was declared, or nothing was found out."""
    if planned_gpu_seconds is None:
        return None
    if outcome is RetuneOutcome.KEPT:
        return 0.0
    if outcome is not RetuneOutcome.REPLACED or speed_ratio is None or speed_ratio <= 0:
        return None
    return saving(planned_gpu_seconds, speed_ratio)


def why_not(cost: float, planned_gpu_seconds: float | None, likely_gain: float | None) -> str | None:
    """Why a retune of this likely cost is not worth it; None: it may be, or nobody declared what for.

    Without a likely gain only the certain case counts: it would cost as much as the whole run it is for.
    """
    if planned_gpu_seconds is None:
        return None
    if likely_gain is None:
        most, how = planned_gpu_seconds, "even the whole of the declared run is"
    else:
        most, how = saving(planned_gpu_seconds, 1 + likely_gain), f"a gain of {likely_gain:.1%} would save"
    if cost < most:
        return None
    return f"not worth it: it is likely to cost {cost:.0f} GPU-seconds, and {how} {most:.0f} GPU-seconds"


def why_stop(
    spent: float, planned_gpu_seconds: float | None, likely_gain: float | None, max_gpu_seconds: float | None
) -> str | None:
    """Why a running retune goes on no more; None: it may."""
    if max_gpu_seconds is not None and spent >= max_gpu_seconds:
        return f"stopped: it has used {spent:.0f} of the {max_gpu_seconds:g} GPU-seconds its schedule allows"
    if planned_gpu_seconds is None:
        return None
    most = planned_gpu_seconds if likely_gain is None else saving(planned_gpu_seconds, 1 + likely_gain)
    if spent < most:
        return None
    return f"stopped: it has used {spent:.0f} GPU-seconds, as much as its answer was expected to save ({most:.0f})"
