"""Measured trials with the product's predictions of them, and the errors of these predictions."""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.tuner.prediction import learning
from shardtune.tuner.prediction.calibration import NO_CALIBRATIONS, Calibrations
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.shapes import config_shape
from shardtune.tuner.prediction.traced_shape import with_adapter

TESTS = "tests"
"""Source of the rows that tests/gpu wrote; the others are a study's runs, of another model."""


@dataclass(frozen=True)
class Row:
    """One measured trial."""

    source: str
    model: dict[str, Any]
    workload: Workload
    cluster: Cluster
    config: TrialConfig
    measurement: Measurement


@dataclass(frozen=True)
class Errors:
    """Percent by which the predictions of one trial were too high."""

    trial: str
    source: str
    precision: str
    speed: float
    speed_once_calibrated: float | None
    """Error of speed once the tests' trials have calibrated the prediction; None for the tests' trials themselves."""
    memory: float


def read(path: Path) -> list[Row]:
    """Trials of a file that ended with a measurement."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        Row(
            row["source"],
            row["model"],
            Workload.model_validate(row["workload"]),
            Cluster.model_validate(row["cluster"]),
            TrialConfig.model_validate(row["config"]),
            Measurement.model_validate(row["measurement"]),
        )
        for row in rows
        if row["measurement"] is not None
    ]


def errors(rows: Sequence[Row]) -> list[Errors]:
    """Errors of each trial's predictions: by the catalogue alone, and calibrated by trials of another model."""
    calibrated = calibrations(row for row in rows if row.source == TESTS)
    return [_errors(row, None if row.source == TESTS else calibrated) for row in rows]


def calibrations(rows: Iterable[Row]) -> Calibrations:
    """What the product learns from these trials."""
    runs: list[learning.ComparedRun] = []
    for _, equal in groupby(rows, key=lambda row: (json.dumps(row.model), row.workload.model_dump_json())):
        group = list(equal)
        runs += learning.compare(
            learning.MeasuredTrials(
                _shape(group[0]),
                group[0].workload,
                group[0].cluster,
                [row.config for row in group],
                [row.measurement for row in group],
            )
        )
    return learning.learn(runs)


def _errors(row: Row, calibrated: Calibrations | None) -> Errors:
    shape = _shape(row)

    def predict(calibrations: Calibrations) -> tuple[float, float]:
        predicted = learning.predict_trial(shape, row.workload, row.cluster, row.config, calibrations)
        assert predicted is not None and predicted.tokens_per_s_per_gpu is not None
        return predicted.tokens_per_s_per_gpu, predicted.memory_gib

    speed, memory = predict(NO_CALIBRATIONS)
    used = learning.peak_gib(row.measurement.memory)
    assert used is not None
    measured = row.measurement.tokens_per_s_per_gpu
    return Errors(
        trial=row.config.describe(),
        source=row.source,
        precision=row.workload.precision.name,
        speed=_percent(speed, measured),
        speed_once_calibrated=None if calibrated is None else _percent(predict(calibrated)[0], measured),
        memory=_percent(memory, used),
    )


def _shape(row: Row) -> ModelShape:
    return with_adapter(config_shape.from_config(row.model), row.model.get("model_type"), row.workload.adapter)


def _percent(predicted: float, measured: float) -> float:
    return round(100 * (predicted / measured - 1), 1)


def summary(trials: Sequence[Errors]) -> dict[str, float]:
    """Median absolute errors in percent, and counts."""
    study = [trial for trial in trials if trial.speed_once_calibrated is not None]

    def median(of: Callable[[Errors], float | None], among: Sequence[Errors]) -> float:
        return round(statistics.median(abs(of(trial) or 0.0) for trial in among), 1)

    return {
        "trials": len(trials),
        "median_speed_error": median(lambda trial: trial.speed, trials),
        "trials_of_the_study": len(study),
        "their_median_speed_error": median(lambda trial: trial.speed, study),
        "their_median_speed_error_once_calibrated": median(lambda trial: trial.speed_once_calibrated, study),
        "median_memory_error": median(lambda trial: trial.memory, trials),
        "largest_memory_error": max(abs(trial.memory) for trial in trials),
    }
