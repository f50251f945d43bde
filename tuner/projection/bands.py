"""Bands of the API from projected and from measured values."""

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.tuner.projection.project import ProjectedValue


def exactly(contender: Contender) -> Band:
    """Return a measured speed as a band of zero width: its low and high ends are the measured value."""
    speed = contender.tokens_per_s_per_gpu
    return Band(expected=speed, low=speed, high=speed)


def band(value: ProjectedValue) -> Band:
    """Convert a projected value and its 90 % band to the API's `Band`."""
    return Band(expected=value.expected, low=value.low, high=value.high)
