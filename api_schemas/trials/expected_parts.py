"""Schema of the predicted time of each part of a training step, compared with the time in its traces."""

from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema

ExpectedName = Literal["computing", "launching", "communication", "optimizer"]


class ExpectedPart(Schema):
    """Predicted and measured seconds of one part of a training step on one rank."""

    name: ExpectedName
    """Name of the part of the step. `computing`: kernels of forward and backward. `launching`: host work and gaps after
    launches on a GPU; on CPU ranks a part of `computing`. `communication`: collectives that do not overlap with other
    work, including the wait for other ranks. `optimizer`: the update, gradient clipping, and those copies of offloading
    that do not overlap."""
    expected_s: float = Field(ge=0, le=1e10)
    """Predicted seconds of the part. The rates behind them were measured on the machine or come from the catalogue, and
    are not corrected by the study's trials."""
    measured_s: float = Field(ge=0, le=1e10)
    """Measured seconds of the part. They were recorded under the profiler, which slows the host down."""
