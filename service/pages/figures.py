"""Format numbers and knobs for a person, with units and only significant digits."""

import re
from datetime import datetime

from markupsafe import Markup, escape

from shardtune.api_schemas import formatting
from shardtune.api_schemas.trials.measurements import compilation_details
from shardtune.api_schemas.trials.trial import TrialReason
from shardtune.service.wording import change_words, study_words
from shardtune.service.wording.backend_words import backend_name
from shardtune.service.wording.knob_words import knob_name

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_WITH_HYPHEN = re.compile(r"(\S*\d[-–]\d\S*)")


def rate(value: float | None) -> str:
    """Format tokens per second per GPU."""
    return "–" if value is None else formatting.rate(value)


def memory(value: float | None, *beside: float) -> str:
    """Format an amount of memory in GiB with its unit; small sizes are shown in MiB. `beside`: amounts with which a
    reader compares it, and which have the same unit."""
    return "–" if value is None else formatting.memory(value, *beside)


_MEMORY_KINDS = {
    "masters": "master weights (fp32)",
    "optimizer": "optimizer state",
    "gathered": "gathered layers",
    "buckets": "communication buckets",
    "recomputation": "one block's activations and gradients",
    "logits": "logits and the loss",
    "step": "temporaries of the optimizer's step",
    "offloaded": "offloaded to the host",
    "fragmentation": "allocator's fragmentation",
}


def memory_kind(name: str) -> str:
    """Return the display name of a term of the memory prediction."""
    return _MEMORY_KINDS.get(name, name)


def percent(value: float | None, digits: int = 0) -> str:
    """Format a fraction in per cent."""
    return "–" if value is None else f"{value * 100:.{digits}f} %"


def gpu_hours(seconds_of_gpu: float) -> str:
    """Format GPU-seconds as GPU-hours, which is the unit in which training runs are declared."""
    return (
        f"{seconds_of_gpu / _HOUR:,.3g} GPU-h"
        if seconds_of_gpu < 1000 * _HOUR
        else f"{seconds_of_gpu / _HOUR:,.0f} GPU-h"
    )


def ratio(value: float | None) -> str:
    """Format a speed-up: `1.96×`."""
    return "–" if value is None else f"{value:.2f}×"


def seconds(value: float | None) -> str:
    """Format a short time: `12.4 ms`, `1.23 s`. Times of at least 10 s have the format of the command line."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.3g} ms" if value < 0.1 else f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 10 else study_words.duration(value)


def count(value: float) -> str:
    """Format a large count: `8.03 billion`."""
    for size, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:,.0f}"


def relative(moment: datetime, now: datetime) -> str:
    """Format a time relative to now: `just now`, `5 min ago`, `12 days ago`, `in 5 min`."""
    # static/enhance.js formats the same way: it updates the text while the page is open.
    age = (now - moment).total_seconds()
    if abs(age) < 10:
        return "just now"
    return f"in {_span(-age)}" if age < 0 else f"{_span(age)} ago"


def _span(length_s: float) -> str:
    if length_s < 90:
        return f"{length_s:.0f} s"
    if length_s < 90 * _MINUTE:
        return f"{length_s / _MINUTE:.0f} min"
    return f"{length_s / _HOUR:.0f} h" if length_s < 36 * _HOUR else f"{length_s / _DAY:.0f} days"


def exact(moment: datetime) -> str:
    """Format a time in UTC, to the second."""
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def tests(reason: TrialReason) -> str:
    """Describe the change that a trial tests, capitalised: `Like trial 2, but FSDP2 instead of ZeRO`."""
    return sentence(change_words.tested_change(reason))


def sentence(text: str) -> str:
    """Capitalise the first letter of a text only, so that names and units keep their case."""
    return text[:1].upper() + text[1:]


def unbroken(text: str) -> Markup:
    """Mark dates and ranges of numbers, so that no line ends at their hyphens."""
    # Split by a group, every second piece is what the group matched.
    pieces = _WITH_HYPHEN.split(text)
    whole = Markup('<span class="nowrap">{}</span>')
    return Markup("").join(whole.format(piece) if at % 2 else escape(piece) for at, piece in enumerate(pieces))


FILTERS = {
    "sentence": sentence,
    "unbroken": unbroken,
    "tests": tests,
    "rate": rate,
    "memory": memory,
    "memory_kind": memory_kind,
    "percent": percent,
    "gpu_hours": gpu_hours,
    "ratio": ratio,
    "seconds": seconds,
    "count": count,
    "exact": exact,
    "backend_name": backend_name,
    "knob_name": knob_name,
    "run_name": study_words.run_name,
    "duration": study_words.duration,
    "compilation_details": compilation_details,
}
