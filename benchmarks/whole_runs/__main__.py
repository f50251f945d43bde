"""Plan published training runs: `python -m benchmarks.whole_runs --data FILE… --json`.

Files in the format of `benchmarks/data/whole_runs.csv`. A run whose number of GPUs is unknown is planned for the number
that would take about 60 days. Errors are ratios of planned to published GPU-hours; the plans know nothing of the hours.
"""

import argparse
import csv
import json
import math
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.whole_runs.models import model, trained_length
from shardtune.api_schemas.trials.plan_rows import PlanRow
from shardtune.api_schemas.trials.plans import PlanRequest
from shardtune.tuner.plans.plan import plan

DATA = Path(__file__).parents[1] / "data"
_COLUMNS = ("model", "params_b", "tokens_b", "gpu", "count", "gpu_hours", "notes")
_DAYS = 60.0
_COUNTS = tuple(8 << power for power in range(12))
_START = datetime(2025, 1, 1, tzinfo=UTC)


class Misread(ValueError):
    """A file that is not in the format of `whole_runs.csv`, or a cell that is no number."""


def planned(row: Mapping[str, str]) -> PlanRow | None:
    """Row of the plan for one published run; None where nothing fits."""
    count = int(float(row["count"])) if row["count"] else None
    request = PlanRequest(
        model=model(row["model"], float(row["params_b"]), row["notes"]),
        tokens=float(row["tokens_b"]) * 1e9,
        gpus=(row["gpu"] if row["gpu"] != "A100" else "A100-80GB",),
        counts=(count,) if count else _COUNTS,
        sequence_length=trained_length(row["model"]),
    )
    rows = plan(request, _START).rows
    return min(rows, key=lambda each: abs(math.log(each.hours.expected / (24.0 * _DAYS))), default=None)


def score(files: Sequence[Path]) -> dict[str, Any]:
    """Ratios of planned to published GPU-hours.

    Raises:
        Misread: a column is missing, or a cell cannot be read.
    """
    runs = [_run(row) for file in files for row in _rows(file)]
    ratios = [run["ratio"] for run in runs if run["ratio"] is not None]
    return {
        "runs": len(ratios),
        "within_1.35": _share(ratios, 1.35),
        "within_1.5": _share(ratios, 1.5),
        "median_ratio": round(median(ratios), 3) if ratios else None,
        "bands_right": round(sum(run["covered"] for run in runs) / len(runs), 3) if runs else None,
        "by_run": runs,
    }


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines)
        lacking = sorted(set(_COLUMNS) - set(reader.fieldnames or ()))
        if lacking:
            raise Misread(f"{file}: columns ({', '.join(lacking)}) are missing; keep the header of whole_runs.csv")
        return [row for row in reader if row["gpu_hours"] and row["tokens_b"]]


def _run(row: Mapping[str, str]) -> dict[str, Any]:
    try:
        result, hours = planned(row), float(row["gpu_hours"])
    except ValueError as error:
        raise Misread(f"run ({row['model']}) cannot be read: {error}") from None
    if result is None:
        return {"model": row["model"], "ratio": None, "covered": False}
    band = result.gpu_hours
    return {
        "model": row["model"],
        "gpus": f"{result.gpus} x {row['gpu']}",
        "ratio": round(band.expected / hours, 3),
        "covered": band.low <= hours <= band.high,
        "configuration": result.description,
    }


def _share(ratios: Sequence[float], most: float) -> float | None:
    return round(sum(1 / most <= ratio <= most for ratio in ratios) / len(ratios), 3) if ratios else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whole_runs", description=__doc__)
    parser.add_argument("--data", type=Path, nargs="+", default=[DATA / "whole_runs.csv"], help="CSV files of runs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    for path in options.data:
        if not path.is_file():
            print(f"file ({path}) does not exist; give a CSV in the format of whole_runs.csv", file=sys.stderr)
            return 2
    try:
        result = score(options.data)
    except (Misread, UnicodeDecodeError) as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(result, indent=None if options.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
