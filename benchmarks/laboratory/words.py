"""The answer as a table to read."""

from typing import Any

_HEAD = ("program", "measured", "projected", "band", "error", "same/GPU", "IQR", "cores", "")


def table(result: dict[str, Any]) -> str:
    """One line for each program, and the figures over all."""
    rows = [_HEAD, *(_cells(row, result["target_hosts"]) for row in result["programs"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", *(f"{name}: {value}" for name, value in result["summary"].items())])


def _cells(row: dict[str, Any], target: int) -> tuple[str, ...]:
    low, high = row["band"]
    rejected = row["rejection"]
    remark = f"rejected: {rejected['reason_code']} {rejected['value']} > {rejected['most']}" if rejected else ""
    return (
        row["program"],
        f"{row['measured']:.1f}",
        f"{row['projected']:.1f}",
        f"{low:.1f}-{high:.1f}{'' if row['is_inside'] else ' (outside)'}",
        f"{row['error']:+.1%}",
        f"{row['same_per_gpu_error']:+.1%}",
        f"{row['step_iqr'][target]:.1%}",
        f"{row['cores'][target]:.2f}",
        remark,
    )
