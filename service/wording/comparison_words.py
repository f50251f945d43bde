"""Rows of the table that compares configurations, for the page and the command line."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardtune.api_schemas.studies.comparisons import ComparedConfig, Comparison, MeasuredSpeed
from shardtune.service.wording import study_words
from shardtune.service.wording.cluster_words import cluster_with_memory
from shardtune.service.wording.disambiguate import knob_value
from shardtune.service.wording.knob_words import knob_name
from shardtune.tuner.search.space.flat import flatten

_NONE, _NO_KNOB = "–", "n/a"


@dataclass(frozen=True)
class ComparedLine:
    """Row of a table that compares configurations; it shows one property of each of them."""

    name: str
    values: tuple[str, ...]
    differs: bool

    @property
    def is_empty(self) -> bool:
        """Whether none of the compared configurations has a value in this row."""
        return all(value in (_NONE, _NO_KNOB) for value in self.values)

    @property
    def is_partial(self) -> bool:
        """Whether the row's knob is missing in the backends of some compared configurations, and has its default in all
        others, which says nothing beyond the backends' names."""
        return self.has_missing and not self.differs

    @property
    def has_missing(self) -> bool:
        """Whether the row's knob is missing in the backend of at least one compared configuration."""
        return _NO_KNOB in self.values


def figure_rows(compared: Comparison) -> tuple[ComparedLine, ...]:
    """Return the rows of the comparison table with measured figures, their intervals, and costs."""
    sides, currency = compared.configs, compared.currency
    peaks = [side.peak_gib for side in sides]
    return tuple(
        _row(name, values)
        for name, values in (
            # An interval of steps within one run says less than the range over validation runs: both rows stay apart.
            ("tokens/s/GPU, search run (95 % interval)", [_speed_with_range(side.search) for side in sides]),
            *((("against the first (search runs)", _relative_speeds(sides)),) if compared.is_one_subject else ()),
            (
                "tokens/s/GPU, validation runs (slowest to fastest)",
                [_speed_with_range(side.validation) for side in sides],
            ),
            ("speed-up over its study's baseline (paired runs)", [_speedup(side) for side in sides]),
            ("peak memory", [study_words.memory(peak, *peaks) or _NONE for peak in peaks]),
            ("step time (search run)", [_NONE if s.step_time_s is None else _seconds(s.step_time_s) for s in sides]),
            ("MFU", [_NONE if side.mfu is None else f"{side.mfu:.1%}" for side in sides]),
            ("cost of its runs", [_cost_in_words(side.gpu_seconds, side.price, currency) for side in sides]),
            (
                "cost of its study",
                [_cost_in_words(side.study_gpu_seconds, side.study_price, currency) for side in sides],
            ),
        )
    )


def training_rows(sides: Sequence[ComparedConfig]) -> tuple[ComparedLine, ...]:
    """Return the rows of the comparison table that say what was trained and where: model, batch, precision and
    cluster."""
    return (
        _row("model", [side.model for side in sides]),
        _row("cluster", [cluster_with_memory(side.cluster) for side in sides]),
        _row("sequence length", [f"{side.workload.sequence_length:,}" for side in sides]),
        _row("samples", ["of one length" if (d := side.workload.data) is None else d.describe() for side in sides]),
        _row("global batch", [f"{side.workload.global_batch:,}" for side in sides]),
        _row("precision", [side.workload.precision.name for side in sides]),
        _row("float8", [side.workload.float8 or "none" for side in sides]),
        _row("optimizer", [side.workload.optimizer.title for side in sides]),
        _row("trained", ["all weights" if (a := side.workload.adapter) is None else a.describe() for side in sides]),
        _row("study", [side.study_id for side in sides]),
    )


def knob_rows(compared: Comparison) -> tuple[ComparedLine, ...]:
    """Return one row of the comparison table for each knob (tuned parameter), starting with the knobs that differ."""
    tables = [flatten(side.config) for side in compared.configs]
    differing = {difference.knob for difference in compared.differences}
    names = dict.fromkeys(name for table in tables for name in table)
    lines = [
        ComparedLine(
            knob_name(name),
            tuple(knob_value(name, table[name]) if name in table else _NO_KNOB for table in tables),
            name in differing,
        )
        for name in names
    ]
    return tuple(sorted(lines, key=lambda line: not line.differs))


def _speed_with_range(measured: MeasuredSpeed | None) -> str:
    if measured is None:
        return _NONE
    shown = study_words.rate(measured.tokens_per_s_per_gpu)
    # One run without an interval would read as a range of width 0, that is as certainty.
    if measured.runs == 1 and measured.low == measured.high:
        return f"{shown} (one run)"
    between = f"{study_words.rate(measured.low)} to {study_words.rate(measured.high)}"
    return f"{shown} ({between}{f', {measured.runs} runs' if measured.runs > 1 else ''})"


def _relative_speeds(sides: Sequence[ComparedConfig]) -> list[str]:
    # Only search runs are shared by all trials; validation runs of different studies may be weeks apart.
    first = sides[0].search if sides else None
    return [
        f"{side.search.tokens_per_s_per_gpu / first.tokens_per_s_per_gpu:.2f}×" if side.search and first else _NONE
        for side in sides
    ]


def _speedup(side: ComparedConfig) -> str:
    if side.speedup is None:
        return "is the baseline" if side.is_baseline else _NONE
    low, high = side.speedup.ci95
    return f"{side.speedup.value:.2f}× ({low:.2f} to {high:.2f}, {side.speedup.pairs} pairs)"


def _seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.2f} s"


def _cost_in_words(gpu_seconds: float, price: float | None, currency: str) -> str:
    return f"{gpu_seconds:,.0f} GPU-seconds" + (f", {price:,.2f} {currency}" if price is not None else "")


def _row(name: str, values: Iterable[str]) -> ComparedLine:
    shown = tuple(values)
    return ComparedLine(name, shown, len(set(shown)) > 1)
