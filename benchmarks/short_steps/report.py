"""Errors of extended step times and peaks, beside the noise of the whole steps themselves."""

from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

from shardtune.api_schemas.trials.short_steps import extended_s


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Errors of each configuration, and over all of them."""
    scored = [_score(row) for row in rows]
    errors, noise, peaks = (
        [abs(row[key]) for row in scored] for key in ("extension_error", "whole_step_noise", "peak_error")
    )
    return {
        "configurations": len(scored),
        "extension_error": {"median": _rounded(median(errors)), "p90": _p90(errors)},
        "whole_step_noise": {"median": _rounded(median(noise)), "p90": _p90(noise)},
        "peak_error": {"median": _rounded(median(peaks)), "largest": _rounded(max(peaks))},
        "rows": scored,
    }


def _score(row: dict[str, Any]) -> dict[str, Any]:
    fewer, more, whole = zip(*row["times_s"], strict=True)
    count = row["whole"]
    accumulations = row["accumulations"][0], row["accumulations"][1]
    extended = [extended_s(a, b, accumulations, count) for a, b in zip(fewer, more, strict=True)]
    # The same figure from every second whole step differs from the other half's by the runs' own noise alone.
    halves = median(whole[::2]), median(whole[1::2])
    return {
        "name": row["name"],
        "micro_batches": [*accumulations, count],
        "whole_step_s": _rounded(median(whole)),
        "extended_step_s": _rounded(median(extended)),
        "extension_error": _rounded(median(extended) / median(whole) - 1),
        "whole_step_noise": _rounded(halves[0] / halves[1] - 1),
        "peak_error": _rounded(row["short_peak_gib"] / row["whole_peak_gib"] - 1),
    }


def as_text(report: dict[str, Any]) -> str:
    """Lines for a person."""
    lines = [
        f"{row['name']:<32} {row['micro_batches']!s:<14} {row['whole_step_s']:>8} s, extended {row['extension_error']:+.2%}, "
        f"noise {row['whole_step_noise']:+.2%}, peak {row['peak_error']:+.2%}"
        for row in report["rows"]
    ]
    totals = (f"{name}: {report[name]}" for name in ("extension_error", "whole_step_noise", "peak_error"))
    return "\n".join([*lines, *totals])


def _p90(values: Sequence[float]) -> float:
    return _rounded(quantiles(values, n=10, method="inclusive")[8] if len(values) > 1 else values[0])


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
