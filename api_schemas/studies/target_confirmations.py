"""Schemas of a confirmation: what a study on the target itself found about the first and the second choice of a projection."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Band, Schema
from shardtune.api_schemas.strategies import TrialConfig

ConfirmationOutcome = Literal["confirmed", "changed", "undecided"]


class MeasuredOnTarget(Schema):
    """Projected configuration that was run on the target itself, with the error of the projection."""

    config: TrialConfig
    """Configuration on the target."""
    description: str
    """Short description of the configuration."""
    tokens_per_s_per_gpu: float
    """Median speed of the configuration's runs on the target, in tokens per second and GPU."""
    runs: int
    """Number of the configuration's runs on the target."""
    projected: Band
    """Speed that was projected for the target from measurements on a smaller cluster, with its 90 % band."""
    error: float = Field(examples=[0.05])
    """Projected speed divided by the measured one, minus 1. 0.05 means that the projection was 5 % too fast."""
    is_inside_band: bool
    """Whether the measured speed lies within the 90 % band of the projection."""


class TargetConfirmation(Schema):
    """Comparison, on the target itself, of the two configurations with the highest projected speeds (first and second
    choice), in pairs of runs."""

    study_id: str
    """Id of the study that ran on the target."""
    outcome: ConfirmationOutcome
    """Outcome of the comparison on the target. `confirmed`: the first choice is faster, or the second cannot run.
    `changed`: the first choice is not faster or cannot run, so that the second is the answer. `undecided`: the pairs
    did not decide, or one of the two was not measured for another reason; the projection then remains. A choice cannot
    run if it ended with `oom`, `over_limit` or `illegal`."""
    config: TrialConfig
    """Configuration that is the answer for the target."""
    description: str
    """Short description of the answer."""
    measured: tuple[MeasuredOnTarget, ...]
    """Results of the first and the second choice of the projection, if they ran on the target."""
    speedup: float | None = Field(examples=[1.12])
    """Speed of the first choice divided by the speed of the second: the median over the pairs of runs; null without
    pairs."""
    ci95: tuple[float, float] | None
    """95 % interval of the median speed ratio (first choice divided by second). null if there are too few pairs, for
    example because one choice is far slower."""
    pairs: int
    """Number of pairs of runs; 0 if one of the two configurations could not run."""
    confirmed_at: datetime
    """Time at which the comparison of configurations on the target ended."""
