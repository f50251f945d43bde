"""Schema of the predicted time of each part of a training step, compared with the time in its traces."""

from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema

ExpectedName = Literal["computing", "launching", "communication", "optimizer"]


class ExpectedPart(Schema):
    """Predicted and measured seconds of one part of a training step on one rank."""

    name: ExpectedName
    """Name of the part of the step. `launching`: host work and gaps after launches on GPUs (on CPU ranks part of
    `computing`). `communication`: time without overlapping work, including waiting for other ranks. `optimizer`:
    includes clipping and the visible part of offloading."""
    expected_s: float = Field(ge=0, le=1e10)
    """Predicted seconds, from rates measured on the machine or from the catalogue, without correction by trials."""
    measured_s: float = Field(ge=0, le=1e10)
    """Seconds measured under the profiler, which slows the host down."""
