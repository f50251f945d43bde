"""Linear scales with round ticks."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Linear map from data values, `low..high`, to positions in a drawing, `start..end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Position of a data value in the drawing, rounded to a tenth of a unit."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, about: int) -> list[float]:
        """Return round values within the range of the scale, approximately `about` of them."""
        step = _step(self.high - self.low, about)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        if last < first:
            return self.ticks(about + 1)
        return [round(index * step, 12) for index in range(first, last + 1)]


@dataclass(frozen=True)
class LogScale:
    """Logarithmic map from data values above 0, which span orders of magnitude, to positions in a drawing."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Position of a data value in the drawing, rounded to a tenth of a unit."""
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, about: int) -> list[float]:
        """Return axis values 1, 2 and 5 times powers of ten, or only powers of ten if those would be too many."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        wide = len(powers) > about
        candidates = [factor * 10.0**power for power in powers for factor in ((1,) if wide else (1, 2, 5))]
        return [round(value, 12) for value in candidates if self.low <= value <= self.high]


Position = Scale | LogScale
"""Scale (linear or logarithmic) that maps data values to positions in a chart."""


def for_sizes(values: list[float], start: float, end: float) -> Position:
    """Return a linear scale that includes 0, or a logarithmic scale if the values span more than a factor of ten."""
    low, high = min(values), max(values)
    if low > 0 and high / low > 10:
        return LogScale(low / 1.3, high * 1.3, start, end)
    return spanning(values, start, end, zero=True)


def from_zero(values: list[float], start: float, end: float, about: int = 5) -> Scale:
    """Return a scale from 0 to a round value above all data, so that the largest value stays clear of the chart's
    frame."""
    largest = max(values, default=1.0) or 1.0
    step = _step(largest * 1.08, about)
    return Scale(0.0, math.ceil(largest * 1.08 / step) * step, start, end)


def memory_unit(sizes_gib: list[float]) -> tuple[float, str]:
    """Return the number of units per GiB and the unit's name. The unit is MiB if small sizes would be shown as 0
    GiB."""
    small = min(sizes_gib) < 0.1 and max(sizes_gib) < 10
    return (1024.0, "MiB") if small else (1.0, "GiB")


def titled(title: str, scale: Position) -> str:
    """Return an axis's title, with the remark `(log scale)` if the axis is logarithmic."""
    return f"{title} (log scale)" if isinstance(scale, LogScale) else title


def spanning(values: list[float], start: float, end: float, zero: bool = False, pad: float = 0.05) -> Scale:
    """Return a scale over all values, widened so that no value lies on the chart's frame. If `zero`, the scale
    includes 0."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    margin = (high - low) * pad or abs(high) * pad or 0.5
    return Scale(low if zero and low == 0 else low - margin, high + margin, start, end)


def tick_label(value: float, largest: float) -> str:
    """Format a value with as many digits as the axis needs: `0.05`, `1.5`, `1,200`, `3k`."""
    size = abs(largest)
    if value == 0:
        return "0"
    if size >= 20_000:
        return f"{value / 1000:,.0f}k"
    if size >= 10:
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
    if size >= 0.1:
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{value:.2g}"


def _step(span: float, about: int) -> float:
    # 0.999: rounding of binary fractions must not skip a step that is exactly wide enough.
    raw = span / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
