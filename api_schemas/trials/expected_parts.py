"""Predicted time of each part of a step, beside the time in its traces."""

from typing import Literal

from shardtune.api_schemas.base import Schema

ExpectedName = Literal["computing", "launching", "communication", "optimizer"]


class ExpectedPart(Schema):
    """Seconds of one part of a step of one rank."""

    name: ExpectedName
    """Name of the part. `launching` is the host's work and gaps after launches, on GPUs; on CPU ranks it is part of
    `computing`. `communication`: time that nothing hides, including waiting for other ranks. `optimizer`: with
    clipping and the visible part of offloading."""
    expected_s: float
    """Predicted seconds, from the rates that were measured on the machine or are the catalogue's, not corrected by
    any trial."""
    measured_s: float
    """Measured seconds under the profiler, which slows the host down."""
