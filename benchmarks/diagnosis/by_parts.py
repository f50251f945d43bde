"""Would profiles make predictions better? Another configuration's step, predicted from the profile of one.

Run: python -m benchmarks.diagnosis.by_parts FOLDER [--json], with what `python -m benchmarks.diagnosis --pairs N --folder FOLDER` has left.

Of each recorded case whose remedy was run in pairs, the remedy's step time is predicted three times: as the predictor says; corrected
by what the whole step of the traced configuration took against its prediction; and corrected part by part, by the same of each part.
Errors are factors by which a prediction is off, either way.
"""

import argparse
import json
from collections.abc import Mapping
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.diagnosis.record import MODEL_SUMMARY, PAIRS, REMEDY, named, rates
from shardtune.api_schemas.machines.hardware import MeasuredHardware
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.service.cli.explain import trace_files
from shardtune.tuner.diagnosis.expected_parts import expected_parts
from shardtune.tuner.prediction import traced_shape
from shardtune.tuner.prediction.predict import predict

_BOUND = 20.0
"""A part's correction is at most this, either way: parts that were predicted as nothing say nothing of others."""


def predictions(folder: Path) -> dict[str, float] | None:
    """The remedy's seconds by each way, and as timed; None where the case has no such record."""
    if not ((folder / PAIRS).exists() and (folder / MODEL_SUMMARY).exists()):
        return None
    name, _, seed = folder.name.rpartition("-")
    case = named(name, int(seed))
    model_summary = ModelSummary.model_validate_json((folder / MODEL_SUMMARY).read_text())
    measured = MeasuredHardware.model_validate_json(rates(folder.parent, case.measured_mbit).read_text())
    remedy = TrialConfig.model_validate_json((folder / REMEDY).read_text())
    diagnosis, shape = trace_files.read_diagnosis(folder / "traces"), traced_shape.of_study(case.model, model_summary)
    assert shape is not None

    def parts(config: TrialConfig) -> tuple[dict[str, float], dict[str, float]]:
        speed = predict(shape, case.workload, case.cluster, config, limits=False, measured=measured).speed
        assert speed is not None
        part_figures = expected_parts(diagnosis, speed)
        return {item.name: item.expected_s for item in part_figures}, {
            item.name: item.measured_s for item in part_figures
        }

    (expected, traced), (trial_parts, _) = parts(case.config), parts(remedy)
    pairs = json.loads((folder / PAIRS).read_text())
    timed, answer = (median(pair[place] for pair in pairs) for place in (0, 1))
    # The profiler's own time is in each part.
    plain = {part: seconds * timed / diagnosis.step_s for part, seconds in traced.items()}
    scale = timed / sum(expected.values())
    return {
        "predicted": sum(trial_parts.values()),
        "by_step": scale * sum(trial_parts.values()),
        "by_parts": _by_parts(expected, plain, trial_parts, scale),
        "timed": answer,
        "before": timed,
    }


def _by_parts(
    expected: Mapping[str, float], measured: Mapping[str, float], trial_parts: Mapping[str, float], scale: float
) -> float:
    def correction(part: str) -> float:
        if not expected[part] or not measured[part]:
            return scale
        return min(max(measured[part] / expected[part], scale / _BOUND), scale * _BOUND)

    return sum(seconds * correction(part) for part, seconds in trial_parts.items())


def summary(scored_predictions: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Median and 90th percentile of the factors, and how often each way says rightly which of the two is faster."""
    rows: dict[str, Any] = {"cases": len(scored_predictions)}
    for way in ("predicted", "by_step", "by_parts"):
        off = sorted(abs(log(item[way] / item["timed"])) for item in scored_predictions.values())
        rows[way] = {"median": round(exp(median(off)), 3), "p90": round(exp(off[int(0.9 * (len(off) - 1))]), 3)}
    rows["parts_nearer_than_step"] = sum(
        abs(log(item["by_parts"] / item["timed"])) < abs(log(item["by_step"] / item["timed"]))
        for item in scored_predictions.values()
    )
    return rows


def main() -> None:
    """Read, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    scored = {item.name: predictions(item) for item in sorted(options.folder.iterdir()) if item.is_dir()}
    figures = {name: item for name, item in scored.items() if item is not None}
    answer = summary(figures) | {
        "rows": {name: {k: round(v, 5) for k, v in item.items()} for name, item in figures.items()}
    }
    print(json.dumps(answer) if options.json else json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
