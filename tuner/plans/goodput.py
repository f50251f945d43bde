"""Goodput: the fraction of a run's time in which steps advance it."""

import math
from typing import NamedTuple

from shardtune.api_schemas.trials.plans import Goodput


class ExpectedGoodput(NamedTuple):
    """Goodput (fraction of time that trains) of a run on some number of GPUs, with the checkpoint interval that it
    assumes."""

    fraction: float
    """Fraction of time in which steps advance the run; 0 where failures come faster than it can recover."""
    interval_s: float | None
    """Seconds between checkpoints; None where no failures are expected and no interval is stated."""


def expected_goodput(assumptions: Goodput, gpus: int) -> ExpectedGoodput:
    """Goodput (fraction of time that trains) with the stated checkpoint interval, otherwise with the best one: about
    the square root of twice a checkpoint's cost times the time between failures (Young 1974, Daly 2006)."""
    planned = 1.0 / (1.0 + assumptions.overhead)
    rate_s = assumptions.failures_per_gpu_hour * gpus / 3600.0
    if rate_s == 0:
        return ExpectedGoodput(planned * _without_saving(assumptions), assumptions.checkpoint_interval_s)
    interval = assumptions.checkpoint_interval_s or max(
        math.sqrt(2.0 * max(assumptions.checkpoint_s, 1.0) / rate_s), 2.0 * assumptions.checkpoint_s, 60.0
    )
    # Each failure loses half of an interval and the restart.
    lost = assumptions.checkpoint_s / (interval + assumptions.checkpoint_s) + rate_s * (
        0.5 * interval + assumptions.restart_s
    )
    return ExpectedGoodput(planned * max(0.0, 1.0 - lost), interval)


def _without_saving(assumptions: Goodput) -> float:
    if assumptions.checkpoint_interval_s is None:
        return 1.0
    return assumptions.checkpoint_interval_s / (assumptions.checkpoint_interval_s + assumptions.checkpoint_s)
