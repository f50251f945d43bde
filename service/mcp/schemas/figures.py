"""Schema of a number in a tool's answer: its unit, its basis (measured, projected or predicted) and its band."""

import math
from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema

Basis = Literal["measured", "projected", "predicted"]
BAND_90, BAND_95 = "90 % interval", "95 % interval"
SPEED, SECONDS, GIB = "tokens/s/GPU", "s", "GiB"
_DIGITS = 4


class Figure(Schema):
    """Number with its unit, its basis (how it was obtained) and its band (the range in which it probably lies)."""

    value: float
    """Value in `unit`."""
    unit: str = Field(examples=[SPEED])
    """Unit of the value and of its band."""
    basis: Basis
    """Basis of the value: `measured` in a run, `projected` from measurements on fewer GPUs, or `predicted` without any
    run. Only a measured value is a result."""
    low: float | None = None
    """Lower end of the band (the range in which the value probably lies); null without a band."""
    high: float | None = None
    """Upper end of the band (the range in which the value probably lies); null without a band."""
    band: str | None = Field(default=None, examples=[BAND_90])
    """Meaning of the band."""
    source: str = Field(examples=["predictor with the catalogue's rates"])
    """Origin of the value."""

    def in_words(self) -> str:
        """Return the figure as text with its band: `9,120 tokens/s/GPU (8,100 to 10,200), predicted`."""
        band = "" if self.low is None or self.high is None else f" ({self.low:,g} to {self.high:,g})"
        return f"{self.value:,g} {self.unit}{band}, {self.basis}"


def rounded(value: float) -> float:
    """Round a value to four significant digits, because no prediction is more precise."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, _DIGITS - 1 - math.floor(math.log10(abs(value))))


def figure(
    value: float,
    unit: str,
    basis: Basis,
    source: str,
    ends: tuple[float, float] | None = None,
    band: str = BAND_90,
) -> Figure:
    """Return a figure whose value is rounded; `ends` are the lower and the upper end of its band."""
    if ends is None:
        return Figure(value=rounded(value), unit=unit, basis=basis, source=source)
    low, high = rounded(ends[0]), rounded(ends[1])
    return Figure(value=rounded(value), unit=unit, basis=basis, low=low, high=high, band=band, source=source)
