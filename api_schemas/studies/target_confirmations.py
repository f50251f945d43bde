"""Schemas of a confirmation: what a study on the target itself found about the first and the second choice of a projection."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Band, Schema
from shardtune.api_schemas.strategies import TrialConfig

ConfirmationOutcome = Literal["confirmed", "changed", "undecided"]


class MeasuredOnTarget(Schema):
    """Projected configuration that ran on the target, with the error of its projection."""

    config: TrialConfig
    """Configuration on the target."""
    description: str
    """Short description of the configuration."""
    tokens_per_s_per_gpu: float
    """Median speed of the configuration's runs on the target, in tokens per second and GPU."""
    runs: int
    """Number of the configuration's runs on the target."""
    projected: Band
    """Speed that had been projected for the target from the smaller cluster, with its 90 % band."""
    error: float = Field(examples=[0.05])
    """Projected speed relative to the measured one, minus 1: 0.05 means that the projection was 5 % too fast."""
    is_inside_band: bool
    """Whether the measured speed lies in the projection's 90 % band."""


class TargetConfirmation(Schema):
    """Comparison of a projection's first and second choice on the target, in pairs of runs."""

    study_id: str
    """Study that ran on the target."""
    outcome: ConfirmationOutcome
    """Outcome on the target. `confirmed`: the first choice is faster, or the second cannot run. `changed`: the first
    choice is not faster or cannot run, so the second is the answer. A choice cannot run where it ended with `oom`,
    `over_limit` or `illegal`. `undecided`: the pairs did not decide, or one of the two was not measured for another
    reason; the projection stands."""
    config: TrialConfig
    """Configuration that is the answer for the target."""
    description: str
    """Short description of the answer."""
    measured: tuple[MeasuredOnTarget, ...]
    """Results of the first and the second choice, as far as they ran on the target."""
    speedup: float | None = Field(examples=[1.12])
    """Speed of the first choice relative to the second: median of the pairs' ratios; null without pairs."""
    ci95: tuple[float, float] | None
    """95 % interval of the median speed ratio (first choice over second); null with too few pairs, such as where one
    choice is far behind."""
    pairs: int
    """Number of pairs of runs; 0 where one of the two could not run."""
    confirmed_at: datetime
    """Time at which the comparison ended."""
