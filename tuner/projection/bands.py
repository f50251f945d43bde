"""Bands of the API from projected and from measured values."""

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.tuner.projection.project import ProjectedValue


def exactly(contender: Contender) -> Band:
    """Measured speed as a band of no width."""
    speed = contender.tokens_per_s_per_gpu
    return Band(expected=speed, low=speed, high=speed)


def band(value: ProjectedValue) -> Band:
    """Projected value as a band of the API."""
    return Band(expected=value.expected, low=value.low, high=value.high)
