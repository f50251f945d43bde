"""Predict each row of a table of published measurements, and compute the figures that the command prints.

Errors are fractions of the measured value.
"""

from collections import Counter
from collections.abc import Sequence
from csv import DictReader
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.predictor.figures import (
    Scored,
    calibrate,
    leave_one_source_out,
    limits,
    mark_contradictions,
    ratios,
    slower_with_larger_batches,
    summary,
)
from benchmarks.predictor.rows import Case, Skipped, hardware_aliases, read
from shardtune.api_schemas.base import GIB
from shardtune.tuner.prediction.calibration import PARTS
from shardtune.tuner.prediction.candidates import from_rows
from shardtune.tuner.prediction.footprint import peak_memory
from shardtune.tuner.prediction.throughput import step_times

DATA = Path(__file__).parents[1] / "data"
USABLE_RESERVE_GIB = 1.5
"""Context and communication library, which the allocator cannot reserve."""


def predict(case: Case) -> Scored:
    """Predict the row; memory in the kind the row states (None where it states none)."""
    candidates = from_rows([case.candidate])
    memory = peak_memory(case.shape, candidates, case.dtypes, case.implementation)
    step = step_times(case.shape, candidates, case.dtypes, case.implementation, case.rates, case.network)
    most = case.gpu.memory_gib
    allocated, reserved = float(memory.allocated[0]) / GIB, float(memory.reserved[0]) / GIB
    if most:
        reserved = max(allocated, min(reserved, most - USABLE_RESERVE_GIB))
    outside = float(memory.context[0] + memory.communication[0]) / GIB
    kinds = {"allocated": allocated, "active": allocated, "reserved": reserved, "device": reserved + outside}
    tokens = float(candidates.tokens[0] * candidates.accumulation[0])
    return Scored(
        case=case,
        parts={name: float(step.parts[name].ravel()[0]) for name in PARTS},
        predicted_s=float(step.total[0]),
        tokens_per_step=tokens,
        predicted_gib=kinds.get(case.row["mem_kind"]),
        fits=None if most is None else allocated + outside <= most,
    )


def _worst(rows: Sequence[Scored], count: int = 10) -> list[dict[str, Any]]:
    errors = [
        {
            "id": row.id, "what": subject, "error": round(error, 3), "predicted": round(predicted, 2),
            "measured": measured, "contradicts": row.contradicts if subject == "memory" else None,
            "row": f"{row.case.row['model_name']} seq {row.case.row['seq_len']} {row.case.row['n_gpus']}x"
            f"{row.case.row['gpu']} {row.case.row['backend']} mb {row.case.row['micro_batch']} {row.case.row['act_ckpt']}",
        }
        for row in rows
        for subject, error, predicted, measured in (
            ("memory", row.memory_error, row.predicted_gib, row.case.row["peak_mem_gib"]),
            ("throughput", row.speed_error, row.tokens_per_step / row.predicted_s, row.case.row["tokens_per_s_per_gpu"]),
        )
        if error is not None and predicted is not None
    ]  # fmt: skip
    return sorted(errors, key=lambda entry: -abs(np.log1p(float(str(entry["error"])))))[:count]


def score(path: Path, hardware: Path = DATA / "hardware.csv") -> dict[str, Any]:
    """Everything `--json` prints."""
    aliases, rows, skipped = hardware_aliases(hardware), list[Scored](), Counter[str]()
    crashed = list[Scored]()
    with path.open(newline="") as lines:
        for line in DictReader(lines):
            try:
                case = read(line, aliases)
                (crashed if case.crashed else rows).append(predict(case))
                skipped.update([f"status {case.crashed}"] if case.crashed else [])
            except Skipped as reason:
                skipped[str(reason)] += 1
    unstated = sum(row.measured_gib is not None and row.predicted_gib is None for row in rows)
    pairs = mark_contradictions(rows)
    slow = slower_with_larger_batches(rows)
    calibrate(rows)
    overall = summary(rows)
    return {
        "overall": {
            **{name: overall[name] for name in ("rows", "memory_rows", "throughput_rows")},
            "skipped": dict(skipped) | ({"memory kind unstated (memory only)": unstated} if unstated else {}),
            **{name: value for name, value in overall.items() if not name.endswith("rows")},
            **ratios(rows, {large for large, _ in slow}),
        },
        "by_backend": {
            backend: summary([row for row in rows if row.case.row["backend"] == backend])
            for backend in sorted({row.case.row["backend"] for row in rows})
        },
        "limit": limits(rows, crashed),
        "worst": _worst(rows),
        "leave_one_source_out": leave_one_source_out(rows),
        "contradictory": pairs,
        "contradictory_speed": slow,
        "memory_by_source": {
            source: summary([row for row in rows if row.case.row["source"] == source])
            for source in sorted({row.case.row["source"] for row in rows if row.memory_error is not None})
        },
    }
