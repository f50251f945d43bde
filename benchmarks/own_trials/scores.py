"""Predicted against measured for the recorded CPU trials: memory as it is, speed after calibration."""

import csv
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.own_trials.cases import JOBS, SEED, Job
from benchmarks.predictor.correlation import spearman
from shardtune.api_schemas.machines.hardware import HardwareReport
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.tuner.prediction.calibration import CPU_SPREAD, fit_speed
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import Evaluation, evaluate
from shardtune.tuner.prediction.shapes import config_shape

Row = dict[str, str]
MIB = 2.0**20
_SPLITS = 20
HARDWARE = {
    2: Path(__file__).parents[1] / "data" / "own_hardware.json",
    4: Path(__file__).parents[1] / "data" / "own_hardware_4_ranks.json",
}
"""Output of `shardtune-worker measure-hardware` on the machine of the trials, by the number of ranks."""


@dataclass(frozen=True)
class Scored:
    """One configuration's runs and what was predicted for it."""

    row: Row
    """The first run's."""
    runs: tuple[float, ...]
    """Seconds of a step in each run, in the order they were made."""
    config: TrialConfig
    predicted_mib: float
    parts: dict[str, float]

    @property
    def error(self) -> float:
        """Relative error of the peak; negative: predicted less than measured."""
        return self.predicted_mib / float(self.row["peak_allocated_mib"]) - 1.0

    @property
    def seconds(self) -> float:
        """Measured: the median of the runs."""
        return median(self.runs)


def read(data: Path) -> list[Row]:
    """The recorded rows."""
    with data.open(newline="") as lines:
        return list(csv.DictReader(lines))


def score(rows: list[Row]) -> dict[str, list[Scored]]:
    """Predictions for the rows with a measurement, by job."""
    scores: dict[str, list[Scored]] = defaultdict(list)
    for name in dict.fromkeys(row["job"] for row in rows):
        job = JOBS[name]
        runs = by_config([row for row in rows if row["job"] == name and row["peak_allocated_mib"]])
        configs = [TrialConfig.model_validate_json(text) for text in runs]
        result = evaluated(job, configs)
        assert result.step is not None
        for index, (own, config) in enumerate(zip(runs.values(), configs, strict=True)):
            parts = {
                part: float(np.broadcast_to(values, len(runs))[index]) for part, values in result.step.parts.items()
            }
            times = tuple(float(row["step_time_s"]) for row in own)
            scores[name].append(Scored(own[0], times, config, float(result.memory.allocated[index]) / MIB, parts))
    return dict(scores)


def by_config(rows: list[Row]) -> dict[str, list[Row]]:
    """The runs of each configuration, in the order of the file."""
    runs_by_config: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        runs_by_config[row["config"]].append(row)
    return runs_by_config


def evaluated(job: Job, configs: list[TrialConfig]) -> Evaluation:
    """The predictor's answer, uncalibrated."""
    shape = config_shape.from_config(job.model.config, job.name)
    candidates = from_configs(configs, job.workload.sequence_length, job.ranks, job.workload.global_batch)
    measured = HardwareReport.model_validate_json(HARDWARE[job.ranks].read_bytes()).measured
    return evaluate(shape, candidates, job.workload, job.cluster, measured=measured)


def report(rows: list[Row]) -> dict[str, Any]:
    """Shares, ranks and the worst rows."""
    scored = score(rows)
    everything = [item for part in scored.values() for item in part]
    strategies = dict.fromkeys(item.row["strategy"] for item in everything)
    return {
        "overall": memory_of(everything) | speed_of(scored),
        "failed": sum(1 for row in rows if row["failure"]),
        "by_job": {name: memory_of(part) | speed_of({name: part}) for name, part in scored.items()},
        "by_strategy": {
            name: memory_of([item for item in everything if item.row["strategy"] == name]) for name in strategies
        },
        "worst": [
            {"job": item.row["job"], "error": round(item.error, 3), "config": item.config.describe()}
            for item in sorted(everything, key=lambda item: -abs(item.error))[:12]
        ],
    }


def memory_of(scored: list[Scored]) -> dict[str, float]:
    """Peak of tensors, no calibration."""
    errors = [item.error for item in scored]
    return {
        "rows": len(errors),
        "median_ape": round(median(abs(error) for error in errors), 4),
        "within_10pct": round(sum(abs(error) <= 0.10 for error in errors) / len(errors), 3),
        "most_under": round(min(errors), 3),
        "most_over": round(max(errors), 3),
    }


def speed_of(scored: dict[str, list[Scored]]) -> dict[str, float]:
    """Ranks within each job, on rows that the calibration has not seen.

    As in the service, one calibration serves all jobs of a fingerprint. It is fitted on a fifth of each job's rows, in
    `_SPLITS` fixed draws; figures are means over them. `unseen_model`: fitted on the other jobs' rows alone.
    """
    draws = [_speed_once(scored, draw) for draw in range(_SPLITS)]
    by_job = {name: float(np.mean([ranks[name] for ranks, _ in draws])) for name in scored}
    raw = [_rank(part, [sum(item.parts.values()) for item in part]) for part in scored.values()]
    figures = {
        "speed_rank_calibrated": float(np.mean(list(by_job.values()))),
        "speed_rank_calibrated_worst_draw": min(float(np.mean(list(ranks.values()))) for ranks, _ in draws),
        "speed_rank_uncalibrated": float(np.mean(raw)),
        "speed_median_ape_calibrated": float(np.median([error for _, errors in draws for error in errors])),
    }
    if len(scored) > 1:
        figures["speed_rank_unseen_model"] = float(np.mean([_unseen(scored, name) for name in scored]))
    repeats = [_repeats(part) for part in scored.values()]
    if all(repeat is not None for repeat in repeats):
        figures["repeat_rank"] = float(np.mean([repeat for repeat in repeats if repeat is not None]))
    return {name: round(value, 3) for name, value in figures.items()}


def _speed_once(scored: dict[str, list[Scored]], draw: int) -> tuple[dict[str, float], list[float]]:
    """Spearman by job, and errors, of the rows outside one draw."""
    calibration_rows: list[Scored] = []
    other_rows: dict[str, list[Scored]] = {}
    for name, part in scored.items():
        order = random.Random(f"{SEED}:{name}:{draw}").sample(part, len(part))
        count = max(5, len(part) // 5) if len(scored) == 1 else max(1, len(part) // 5)
        calibration_rows += order[:count]
        other_rows[name] = order[count:]
    predicted = {name: _calibrated(calibration_rows, part) for name, part in other_rows.items()}
    errors = [
        abs(value / item.seconds - 1.0)
        for name, part in other_rows.items()
        for value, item in zip(predicted[name], part, strict=True)
    ]
    return {name: _rank(part, predicted[name]) for name, part in other_rows.items()}, errors


def _unseen(scored: dict[str, list[Scored]], name: str) -> float:
    others = [item for other, part in scored.items() if other != name for item in part]
    return _rank(scored[name], _calibrated(others, scored[name]))


def _calibrated(calibration_rows: list[Scored], other_rows: list[Scored]) -> list[float]:
    fit = fit_speed([item.parts for item in calibration_rows], [item.seconds for item in calibration_rows], CPU_SPREAD)
    return [float(fit.seconds({key: np.array([value]) for key, value in item.parts.items()})[0]) for item in other_rows]


def _rank(part: list[Scored], predicted: list[float]) -> float:
    return spearman(predicted, [item.seconds for item in part]) or 0.0


def _repeats(part: list[Scored]) -> float | None:
    """Rank correlation between two runs of the same configurations: the limit that noise sets to any predictor."""
    twice = [item.runs for item in part if len(item.runs) > 1]
    return spearman([runs[0] for runs in twice], [runs[1] for runs in twice]) if len(twice) > 4 else None
