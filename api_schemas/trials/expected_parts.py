"""What a part of a step was predicted to take, beside what its traces show."""

from typing import Literal

from shardtune.api_schemas.base import Schema

ExpectedName = Literal["computing", "launching", "communication", "optimizer"]


class ExpectedPart(Schema):
    """Seconds of one step of one rank."""

    name: ExpectedName
    """`launching` is the host's work and gaps after launches, on GPUs; on CPU ranks it is part of `computing`. `communication`: what
    nothing hides, waiting for other ranks among it. `optimizer`: with clipping and what offloading shows."""
    expected_s: float
    """By the predictor, from the rates that were measured on the machine or are the catalogue's, not corrected by any trial."""
    measured_s: float
    """Under the profiler, which slows the host down."""
