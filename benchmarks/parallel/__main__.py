"""Put the layouts of published sweeps in order without having seen any: `python -m benchmarks.parallel --data FILE… --json`.

Tables in the format of `benchmarks/data/nanotron_sweep.csv` or `aleph_alpha_layouts.csv`. What is expected to fit is tried in
order of the predicted time; nothing is learned on the way.
"""

import argparse
import json
import math
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.parallel import leave_out, twins
from benchmarks.parallel.prediction import predict
from benchmarks.parallel.tables import Measured, Misread, read
from benchmarks.predictor.correlation import spearman

DATA = Path(__file__).parents[1] / "data"
FILES = (DATA / "nanotron_sweep.csv", DATA / "aleph_alpha_layouts.csv")
_GOOD_ENOUGH = 1.03
_FEWEST = 3
"""Rows of which an order is judged."""


def score(rows: Sequence[Measured]) -> dict[str, Any]:
    """Scores of the prediction of one table; None where it has too few rows that ran."""
    predictions = predict(rows)
    seconds = [prediction.seconds for prediction in predictions]
    fits = [
        prediction.bytes_needed <= row.training.memory_bytes for prediction, row in zip(predictions, rows, strict=True)
    ]
    ran = [(predicted, row.seconds) for predicted, row in zip(seconds, rows, strict=True) if row.seconds is not None]
    passed = [fit for fit, row in zip(fits, rows, strict=True) if row.seconds is not None]
    stopped = [not fit for fit, row in zip(fits, rows, strict=True) if row.seconds is None]
    order = sorted((p, row.seconds or math.inf) for p, fit, row in zip(seconds, fits, rows, strict=True) if fit)
    best = min((step_s for _, step_s in ran), default=math.inf)
    good = (tried_count for tried_count, (_, step_s) in enumerate(order, 1) if step_s <= best * _GOOD_ENOUGH)
    return {
        "feasible": len(ran),
        "crashed": len(stopped),
        "spearman": spearman(*zip(*ran, strict=True)) if len(ran) >= _FEWEST else None,
        "trials_to_3pct": next(good, len(order) + 1) if ran else None,
        "gate_accepts": _share(passed),
        "gate_rejects": _share(stopped),
        "speed_median_ape": median(abs(p / step_s - 1) for p, step_s in ran) if ran else None,
        "twins": twins.score(rows, predictions),
    }


def _share(yes: Sequence[bool]) -> float | None:
    return sum(yes) / len(yes) if yes else None


def report(files: Sequence[Path]) -> dict[str, Any]:
    """Each table of the files, and all of them together by file; what is fitted is fitted on other numbers of GPUs.

    Raises:
        Misread: a file in neither format.
    """
    tables, overall = [], {}
    for file in files:
        file_tables = read(file)
        fitted = leave_out.fitted_by_world(file_tables)
        scored = []
        for name, rows in file_tables.items():
            constants = fitted[rows[0].layout.ranks]
            scores = score(leave_out.with_constants(rows, constants))
            scored.append({"table": name, **scores, "fitted_elsewhere": constants and constants._asdict()})
        tables += scored
        overall[file.stem] = _together(scored)
    return {"tables": tables, "overall": overall}


def _together(scored: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def of(name: str) -> list[float]:
        return [item[name] for item in scored if item[name] is not None]

    def weighted(name: str, weight: str) -> float | None:
        rows = sum(item[weight] for item in scored)
        return sum((item[name] or 0.0) * item[weight] for item in scored) / rows if rows else None

    return {
        "tables": len(of("trials_to_3pct")),
        "spearman_median": median(of("spearman")) if of("spearman") else None,
        "trials_median": median(of("trials_to_3pct")) if of("trials_to_3pct") else None,
        "trials_worst": max(of("trials_to_3pct"), default=None),
        "gate_accepts": weighted("gate_accepts", "feasible"),
        "gate_rejects": weighted("gate_rejects", "crashed"),
        "speed_median_ape": median(of("speed_median_ape")) if of("speed_median_ape") else None,
    }


def by_world(tables: dict[str, Sequence[Measured]], only: Collection[int] = ()) -> dict[str, Any]:
    """Errors on agreeing twins, for each number of GPUs or some of them, with the constants fitted on the others."""
    fitted = leave_out.fitted_by_world(tables)
    worlds: dict[int, list[Measured]] = {}
    for rows in tables.values():
        worlds.setdefault(rows[0].layout.ranks, []).extend(rows)
    scores = {}
    for world, rows in sorted(worlds.items()):
        if only and world not in only:
            continue
        own = leave_out.with_constants(rows, fitted[world])
        constants = fitted[world]
        scores[str(world)] = twins.score(own, predict(own)) | {"fitted_elsewhere": constants and constants._asdict()}
    return scores


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel", description=__doc__)
    parser.add_argument("--data", type=Path, nargs="+", default=FILES, help="CSV files of published sweeps")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    for path in options.data:
        if not path.is_file():
            print(f"file ({path}) does not exist; give a CSV in the format of {FILES[0]}", file=sys.stderr)
            return 2
        try:
            read(path)
        except (Misread, UnicodeDecodeError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
    print(json.dumps(report(options.data), indent=None if options.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
