"""Restrictions that a user sets on the search space of a study."""

from typing import Literal

from pydantic import Field, model_validator

from shardtune.api_schemas.base import Schema

Backend = Literal["ddp", "zero", "fsdp2", "fsdp1"]
BACKENDS: tuple[Backend, ...] = ("ddp", "zero", "fsdp2", "fsdp1")

KnobValue = bool | int | float | str


class Limit(Schema):
    """Lowest and highest allowed value of one numeric knob, both inclusive."""

    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _ordered(self) -> "Limit":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min ({self.min}) must not exceed max ({self.max}); swap them")
        return self


class SpaceLimits(Schema):
    """Restrictions of a study's search space. A knob that they do not name is not restricted."""

    backends: tuple[Backend, ...] = Field(default=BACKENDS, min_length=1)
    knobs: dict[str, KnobValue | tuple[KnobValue, ...] | Limit] = {}
    """Restrictions by the name of the knob (see docs/reference/search-space.md). A single value fixes the knob, a list
    such as `[1, 2]` restricts it to these values, and `{min, max}` bounds it."""
    allow_compile: bool | None = None
    """Whether the search also tries `torch.compile`, which costs a minute or more per trial. If not given, only
    searches on GPUs try it."""
