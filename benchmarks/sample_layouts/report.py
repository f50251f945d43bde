"""Speeds of the layouts as measured and as predicted, and the layout that each of them would choose."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.own_trials.scores import HARDWARE
from benchmarks.sample_layouts.cases import CLUSTER, EQUAL, MODEL, Case
from shardtune.api_schemas.machines.hardware import HardwareReport
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.tuner.prediction.calibration import CPU_SPREAD, UNCALIBRATED, SpeedCalibration, fit_speed
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import Evaluation, evaluate
from shardtune.tuner.prediction.shapes import config_shape


@dataclass(frozen=True)
class Trial:
    """One case with the measurements of all rounds."""

    case: Case
    measurements: tuple[Measurement, ...]

    @property
    def tokens_per_s(self) -> float:
        """Measured tokens per second and rank that are no padding: the median of the rounds."""
        return median(measurement.tokens_per_s_per_gpu for measurement in self.measurements)


def report(trials: Sequence[Trial]) -> dict[str, Any]:
    """Errors of the predicted speeds, and the choice of a layout, by configuration and over all."""
    calibration = _calibrated([trial for trial in trials if trial.case.layout == EQUAL])
    scored = [trial for trial in trials if trial.case.layout != EQUAL]
    rows = [_row(trial, calibration) for trial in scored]
    by_config: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_config[row["config"]].append(row)
    errors = [abs(row["error"]) for row in rows]
    return {
        "trials": len(rows),
        "median_error": round(median(errors), 4),
        "largest_error": round(max(errors), 4),
        "within_10pct": round(sum(error <= 0.1 for error in errors) / len(errors), 3),
        "same_layout": sum(_choice(own)["same"] for own in by_config.values()),
        "configurations": len(by_config),
        "choices": {config: _choice(own) for config, own in by_config.items()},
        "over_all": _choice(rows),
        "samples": _samples(scored),
        "rows": rows,
    }


def _calibrated(equal_trials: Sequence[Trial]) -> SpeedCalibration:
    parts = []
    for trial in equal_trials:
        step = _evaluated(trial.case, UNCALIBRATED).step
        assert step is not None
        parts.append({name: float(values[0]) for name, values in step.parts.items()})
    seconds = [median(measurement.step_time_s for measurement in trial.measurements) for trial in equal_trials]
    return fit_speed(parts, seconds, CPU_SPREAD)


def _row(trial: Trial, calibration: SpeedCalibration) -> dict[str, Any]:
    speeds = _evaluated(trial.case, calibration).tokens_per_s_per_gpu
    assert speeds is not None
    padding = trial.measurements[0].padding
    assert padding is not None
    return {
        "config": trial.case.config.describe(),
        "layout": trial.case.layout,
        "measured": round(trial.tokens_per_s, 1),
        "rounds": [round(measurement.tokens_per_s_per_gpu, 1) for measurement in trial.measurements],
        "predicted": round(float(speeds[0]), 1),
        "error": round(float(speeds[0]) / trial.tokens_per_s - 1, 4),
        "padding_fraction": round(padding.padding_fraction, 4),
    }


def _evaluated(case: Case, calibration: SpeedCalibration) -> Evaluation:
    shape = config_shape.from_config(MODEL.config, MODEL.name)
    ranks, workload = CLUSTER.world_size, case.workload
    candidates = from_configs([case.config], workload.sequence_length, ranks, workload.global_batch)
    measured = HardwareReport.model_validate_json(HARDWARE[ranks].read_bytes()).measured
    return evaluate(shape, candidates, workload, CLUSTER, speed_calibration=calibration, measured=measured)


def _choice(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Fastest row as measured and as predicted, and the share of speed that following the prediction loses."""
    fastest, foretold = (max(rows, key=lambda row: row[figure]) for figure in ("measured", "predicted"))
    return {
        "measured": f"{fastest['layout']}, {fastest['config']}",
        "predicted": f"{foretold['layout']}, {foretold['config']}",
        "same": fastest is foretold,
        "regret": round(1 - foretold["measured"] / fastest["measured"], 4),
    }


def _samples(trials: Sequence[Trial]) -> dict[str, list[str]]:
    """Hashes of the samples that the trials of each layout trained on: one hash each where they are the same."""
    hashes: dict[str, set[str]] = defaultdict(set)
    for trial in trials:
        for measurement in trial.measurements:
            assert measurement.padding is not None
            hashes[trial.case.layout].add(measurement.padding.samples)
    return {layout: sorted(own) for layout, own in hashes.items()}


def as_text(figures: dict[str, Any]) -> str:
    """Lines for a person."""
    lines = [
        f"{row['config']:<28} {row['layout']:<8} {row['measured']:>9,.0f} tokens/s, predicted {row['error']:+.1%}, "
        f"padding {row['padding_fraction']:.0%}"
        for row in figures["rows"]
    ]
    lines += [
        f"median error {figures['median_error']:.1%}, largest {figures['largest_error']:.1%}, "
        f"{figures['within_10pct']:.0%} of {figures['trials']} trials within 10 %",
        f"the predicted layout is the fastest one for {figures['same_layout']} of {figures['configurations']} configurations",
        f"fastest of all: {figures['over_all']['measured']}; predicted: {figures['over_all']['predicted']} "
        f"(loses {figures['over_all']['regret']:.1%})",
    ]
    return "\n".join(lines)
