"""Predicted against measured for the recorded CPU trials: memory as it is, speed after calibration.

Calibrated on a fifth of each job's rows (fixed seed), scored on the rest.
"""

import csv
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from api_schemas.hardware import HardwareReport
from api_schemas.strategies import TrialConfig
from benchmarks.correlation import spearman
from benchmarks.own_cases import JOBS, SEED, Job
from tuner import model_shape
from tuner.calibration import CPU_PART_SIGMA, fit_speed
from tuner.evaluation import Evaluation, evaluate
from tuner.footprint.candidates import from_configs

Row = dict[str, str]
MIB = 2.0**20
HARDWARE = Path(__file__).parent / "data" / "own_hardware.json"
"""What `shardtune measure-hardware` said about the machine of the trials."""


@dataclass(frozen=True)
class Scored:
    """One row and what was predicted for it."""

    row: Row
    config: TrialConfig
    predicted_mib: float
    parts: dict[str, float]

    @property
    def error(self) -> float:
        """Relative error of the peak; negative: predicted less than measured."""
        return self.predicted_mib / float(self.row["peak_allocated_mib"]) - 1.0

    @property
    def seconds(self) -> float:
        """Measured."""
        return float(self.row["step_time_s"])


def read(data: Path) -> list[Row]:
    """The recorded rows."""
    with data.open(newline="") as lines:
        return list(csv.DictReader(lines))


def score(rows: list[Row]) -> dict[str, list[Scored]]:
    """Predictions for the rows with a measurement, by job."""
    made: dict[str, list[Scored]] = defaultdict(list)
    for name in dict.fromkeys(row["job"] for row in rows):
        job = JOBS[name]
        own = [row for row in rows if row["job"] == name and row["peak_allocated_mib"]]
        configs = [TrialConfig.model_validate_json(row["config"]) for row in own]
        result = evaluated(job, configs)
        assert result.step is not None
        for index, (row, config) in enumerate(zip(own, configs, strict=True)):
            parts = {
                part: float(np.broadcast_to(values, len(own))[index]) for part, values in result.step.parts.items()
            }
            made[name].append(Scored(row, config, float(result.memory.allocated[index]) / MIB, parts))
    return dict(made)


def evaluated(job: Job, configs: list[TrialConfig]) -> Evaluation:
    """The predictor's answer, uncalibrated."""
    shape = model_shape.from_config(job.model.config, job.name)
    candidates = from_configs(configs, job.workload.sequence_length, job.ranks, job.workload.global_batch)
    measured = HardwareReport.model_validate_json(HARDWARE.read_bytes()).measured if job.ranks == 2 else None
    return evaluate(shape, candidates, job.workload, job.cluster, measured=measured)


def report(rows: list[Row]) -> dict[str, Any]:
    """Shares, ranks and the worst rows."""
    scored = score(rows)
    everything = [one for part in scored.values() for one in part]
    strategies = dict.fromkeys(one.row["strategy"] for one in everything)
    return {
        "overall": memory_of(everything) | speed_of(scored),
        "failed": sum(1 for row in rows if row["failure"]),
        "by_job": {name: memory_of(part) | speed_of({name: part}) for name, part in scored.items()},
        "by_strategy": {
            name: memory_of([one for one in everything if one.row["strategy"] == name]) for name in strategies
        },
        "worst": [
            {"job": one.row["job"], "error": round(one.error, 3), "config": one.config.describe()}
            for one in sorted(everything, key=lambda one: -abs(one.error))[:12]
        ],
    }


def memory_of(scored: list[Scored]) -> dict[str, float]:
    """Peak of tensors, no calibration."""
    errors = [one.error for one in scored]
    return {
        "rows": len(errors),
        "median_ape": round(median(abs(error) for error in errors), 4),
        "within_10pct": round(sum(abs(error) <= 0.10 for error in errors) / len(errors), 3),
        "most_under": round(min(errors), 3),
        "most_over": round(max(errors), 3),
    }


def speed_of(scored: dict[str, list[Scored]]) -> dict[str, float]:
    """Mean over jobs, on the rows that calibration has not seen."""
    ranks, errors, raw = [], [], []
    for name, part in scored.items():
        order = random.Random(f"{SEED}:{name}").sample(range(len(part)), len(part))
        count = max(5, len(part) // 5)
        seen, rest = [part[i] for i in order[:count]], [part[i] for i in order[count:]]
        fit = fit_speed([one.parts for one in seen], [one.seconds for one in seen], CPU_PART_SIGMA)
        table = {key: np.array([one.parts[key] for one in rest]) for key in rest[0].parts}
        predicted, measured = fit.seconds(table), np.array([one.seconds for one in rest])
        ranks.append(spearman(list(predicted), list(measured)) or 0.0)
        raw.append(spearman(list(sum(table.values())), list(measured)) or 0.0)
        errors += list(np.abs(predicted / measured - 1.0))
    return {
        "speed_rank_calibrated": round(float(np.mean(ranks)), 3),
        "speed_rank_uncalibrated": round(float(np.mean(raw)), 3),
        "speed_median_ape_calibrated": round(float(np.median(errors)), 3),
    }
