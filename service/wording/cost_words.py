"""Words for the estimated cost of a study, for the command line and the page of a new study."""

from shardtune.api_schemas.studies.study_cost import ExpectedGain, Range, StudyCost
from shardtune.service.wording import study_words

_WHOLE_HOURS = 10.0
"""Number of GPU-hours from which no decimals are shown; the number format `.2g` would write 120 as `1.2e+02`."""


def cost_rows(cost: StudyCost, *, on_cpu: bool) -> list[tuple[str, str]]:
    """Return the estimated cost of a study as rows, each with a name and a text."""
    return [
        ("trials", f"{_numbers(cost.trials)}, then {_validation_runs(cost.validation_runs)}"),
        *([("recipes", f"{_numbers(cost.recipe_runs)} runs beside the answer")] if cost.recipe_runs.high else []),
        *time_rows(cost.minutes, cost.gpu_hours, on_cpu=on_cpu),
        ("gain", _gain(cost.expected_gain)),
        *(("stops" if at == 0 else "", text) for at, text in enumerate(cost.stops)),
        ("basis", cost.basis),
    ]


def time_rows(minutes: Range | None, gpu_hours: Range | None, *, on_cpu: bool) -> list[tuple[str, str]]:
    """Return an estimated time as rows for minutes and GPU-hours (rank-hours), each with a name and a text."""
    unknown = "not known: step times of this model or hardware cannot be predicted"
    return [
        ("time", unknown if minutes is None else _times(minutes)),
        ("rank-hours" if on_cpu else "GPU-hours", unknown if gpu_hours is None else _hours(gpu_hours)),
    ]


def _numbers(count: Range) -> str:
    return f"{count.low:.0f}" if count.low == count.high else f"{count.low:.0f} to {count.high:.0f}"


def _validation_runs(runs: Range) -> str:
    # The limit that a running study shows follows from all candidates of its search, which are rarely equally fast.
    noun = "validation run" if runs.low == runs.high == 1 else "validation runs"
    return f"usually {_numbers(runs)} {noun}; more if many configurations are about as fast"


def _times(minutes: Range) -> str:
    low, high = study_words.duration(60 * minutes.low), study_words.duration(60 * minutes.high)
    return f"about {low}" if low == high else f"{low} to {high}"


def _hours(hours: Range) -> str:
    return " to ".join(
        f"{value:,.0f}" if value >= _WHOLE_HOURS else f"{value:.2g}" for value in (hours.low, hours.high)
    )


def _gain(gain: ExpectedGain | None) -> str:
    if gain is None:
        return "not known: no baseline or no configuration is predicted to fit, or speeds cannot be predicted"
    return (
        f"predicted {gain.value:.2f}x [{gain.low:.2f}, {gain.high:.2f}] ({gain.fastest} over {gain.baseline}; "
        "90 % band, from predictions alone)"
    )
