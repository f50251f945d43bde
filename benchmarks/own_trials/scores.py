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
from shardtune.tuner.prediction import model_shape
from shardtune.tuner.prediction.calibration import CPU_PART_SIGMA, fit_speed
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import Evaluation, evaluate

Row = dict[str, str]
MIB = 2.0**20
_SPLITS = 20
HARDWARE = {
    2: Path(__file__).parents[1] / "data" / "own_hardware.json",
    4: Path(__file__).parents[1] / "data" / "own_hardware_4_ranks.json",
}
"""What `shardtune-worker measure-hardware` said about the machine of the trials, by the number of ranks."""


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
    made: dict[str, list[Scored]] = defaultdict(list)
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
            made[name].append(Scored(own[0], times, config, float(result.memory.allocated[index]) / MIB, parts))
    return dict(made)


def by_config(rows: list[Row]) -> dict[str, list[Row]]:
    """The runs of each configuration, in the order of the file."""
    made: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        made[row["config"]].append(row)
    return made


def evaluated(job: Job, configs: list[TrialConfig]) -> Evaluation:
    """The predictor's answer, uncalibrated."""
    shape = model_shape.from_config(job.model.config, job.name)
    candidates = from_configs(configs, job.workload.sequence_length, job.ranks, job.workload.global_batch)
    measured = HardwareReport.model_validate_json(HARDWARE[job.ranks].read_bytes()).measured
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
    """Ranks within each job, on rows that the calibration has not seen.

    As in the service, one calibration serves all jobs of a fingerprint. It is fitted on a fifth of each job's rows, in
    `_SPLITS` fixed draws; figures are means over them. `unseen_model`: fitted on the other jobs' rows alone.
    """
    draws = [_speed_once(scored, draw) for draw in range(_SPLITS)]
    by_job = {name: float(np.mean([ranks[name] for ranks, _ in draws])) for name in scored}
    raw = [_rank(part, [sum(one.parts.values()) for one in part]) for part in scored.values()]
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
    seen: list[Scored] = []
    rest: dict[str, list[Scored]] = {}
    for name, part in scored.items():
        order = random.Random(f"{SEED}:{name}:{draw}").sample(part, len(part))
        count = max(5, len(part) // 5) if len(scored) == 1 else max(1, len(part) // 5)
        seen += order[:count]
        rest[name] = order[count:]
    predicted = {name: _calibrated(seen, part) for name, part in rest.items()}
    errors = [
        abs(value / one.seconds - 1.0)
        for name, part in rest.items()
        for value, one in zip(predicted[name], part, strict=True)
    ]
    return {name: _rank(part, predicted[name]) for name, part in rest.items()}, errors


def _unseen(scored: dict[str, list[Scored]], name: str) -> float:
    others = [one for other, part in scored.items() if other != name for one in part]
    return _rank(scored[name], _calibrated(others, scored[name]))


def _calibrated(seen: list[Scored], rest: list[Scored]) -> list[float]:
    fit = fit_speed([one.parts for one in seen], [one.seconds for one in seen], CPU_PART_SIGMA)
    return [float(fit.seconds({key: np.array([value]) for key, value in one.parts.items()})[0]) for one in rest]


def _rank(part: list[Scored], predicted: list[float]) -> float:
    return spearman(predicted, [one.seconds for one in part]) or 0.0


def _repeats(part: list[Scored]) -> float | None:
    """How well one run's time ranks another's of the same configuration: what noise leaves to any predictor."""
    twice = [one.runs for one in part if len(one.runs) > 1]
    return spearman([runs[0] for runs in twice], [runs[1] for runs in twice]) if len(twice) > 4 else None
