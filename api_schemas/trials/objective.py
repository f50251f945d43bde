"""Schema of the objective, which says how much memory a trial must leave free."""

from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema


class Objective(Schema):
    """Quantity that a study maximises, and the constraints that the best configuration must satisfy."""

    metric: Literal["tokens_per_s_per_gpu"] = "tokens_per_s_per_gpu"
    memory_headroom: float = Field(default=0.05, ge=0, lt=0.9)
    """Fraction of memory that the best configuration must leave free. A run that leaves less free fails as
    `over_limit`."""
