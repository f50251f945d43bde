"""Row of a plan: hours, money and finish date of the run with one configuration."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.plan_rows import DateBand, Evidence, ImpossibleRow, PlanRow, StudyVerdict
from shardtune.api_schemas.trials.plans import PlanRequest
from shardtune.tuner.plans import run_days
from shardtune.tuner.plans.goodput import expected_goodput
from shardtune.tuner.plans.measured_band import scaled
from shardtune.tuner.prediction.calibration import BAND_DEVIATIONS

_OVERHEAD_SIGMA = 0.05
"""Standard deviation of the logarithm of a run's hours, given its step time and stated losses of time: other overheads
are 10 to 20 %."""
_MOST_HOURS = 24.0 * 365 * 200


@dataclass(frozen=True)
class RowConfig:
    """Configuration of a row, its speed and memory, and where these figures come from."""

    config: TrialConfig
    global_batch: int
    tokens_per_s_per_gpu: Band
    evidence: Evidence
    memory_gib: float
    memory_evidence: Evidence = "predicted"
    may_not_fit: bool = False
    anchors: tuple[int, ...] = ()
    """Numbers of GPUs on which the speed was measured; empty if it is predicted."""
    slowness_if_scattered: float = 1.0
    """Factor by which the low end of the speed's band is lower, because neighbouring nodes may be below different leaf
    switches."""
    study_id: str | None = None
    verdict: StudyVerdict | None = None


def row_of(request: PlanRequest, gpu: str, count: int, chosen: RowConfig, begins: datetime) -> PlanRow | ImpossibleRow:
    """Return the row of a configuration on one kind and number of GPUs; a row without figures if the run never ends,
    because failures come faster than it can recover."""
    goodput = expected_goodput(request.goodput, count)
    hours = _hours(request, chosen, count, goodput.fraction)
    if hours is None:
        reason = (
            f"with {request.goodput.failures_per_gpu_hour:g} failures per GPU-hour, {count} GPUs fail before they get on; "
            "lower failures_per_gpu_hour, checkpoint_s or restart_s"
        )
        return ImpossibleRow(gpu=gpu, gpus=count, reason=reason)
    price, gpu_hours = request.price_of(gpu), scaled(hours, float(count))
    cost = scaled(gpu_hours, price) if price is not None else None
    return PlanRow(
        gpu=gpu,
        gpus=count,
        config=chosen.config,
        description=chosen.config.describe(),
        evidence=chosen.evidence,
        study_id=chosen.study_id,
        verdict=chosen.verdict,
        global_batch=chosen.global_batch,
        tokens_per_s_per_gpu=chosen.tokens_per_s_per_gpu,
        memory_gib=chosen.memory_gib,
        memory_evidence=chosen.memory_evidence,
        may_not_fit=chosen.may_not_fit,
        goodput=goodput.fraction,
        checkpoint_interval_s=goodput.interval_s,
        hours=hours,
        gpu_hours=gpu_hours,
        cost=cost,
        finish=DateBand(**{name: run_days.day_after(begins, value) for name, value in _ends(hours)}),
        meets_deadline=_chance(hours, run_days.hours_until(request.deadline, begins)),
        within_budget=_chance(cost, request.budget) if cost is not None else None,
        extrapolated_from=chosen.anchors,
    )


def _hours(request: PlanRequest, chosen: RowConfig, count: int, goodput: float) -> Band | None:
    """Expected hours of the run; None if it never ends because failures come faster than it can recover."""
    if goodput <= 0:
        return None
    speed, scattered = chosen.tokens_per_s_per_gpu, chosen.slowness_if_scattered
    expected = request.tokens / (speed.expected * count * goodput) / 3600.0
    if expected > _MOST_HOURS * 1e6:
        return None
    spread = (math.log(speed.high / speed.low) - math.log(scattered)) / 2.0
    width = math.exp(math.hypot(spread, BAND_DEVIATIONS * _OVERHEAD_SIGMA))
    return Band(expected=expected, low=expected / width, high=expected * width * scattered)


def _ends(hours: Band) -> Sequence[tuple[str, float]]:
    return (("expected", hours.expected), ("earliest", hours.low), ("latest", hours.high))


def _chance(band: Band, limit: float | None) -> Literal["surely", "likely", "unlikely", "no"] | None:
    if limit is None:
        return None
    if band.high <= limit:
        return "surely"
    if band.expected <= limit:
        return "likely"
    return "unlikely" if band.low <= limit else "no"
