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
    found, shape = trace_files.diagnosis_of(folder / "traces"), traced_shape.of_study(case.model, model_summary)
    assert shape is not None

    def parts(config: TrialConfig) -> tuple[dict[str, float], dict[str, float]]:
        speed = predict(shape, case.workload, case.cluster, config, limits=False, measured=measured).speed
        assert speed is not None
        told = expected_parts(found, speed)
        return {one.name: one.expected_s for one in told}, {one.name: one.measured_s for one in told}

    (expected, traced), (wanted, _) = parts(case.config), parts(remedy)
    pairs = json.loads((folder / PAIRS).read_text())
    timed, answer = (median(pair[place] for pair in pairs) for place in (0, 1))
    # The profiler's own time is in each part.
    plain = {part: seconds * timed / found.step_s for part, seconds in traced.items()}
    whole = timed / sum(expected.values())
    return {
        "predicted": sum(wanted.values()),
        "by_step": whole * sum(wanted.values()),
        "by_parts": _by_parts(expected, plain, wanted, whole),
        "timed": answer,
        "before": timed,
    }


def _by_parts(
    expected: Mapping[str, float], measured: Mapping[str, float], wanted: Mapping[str, float], whole: float
) -> float:
    def correction(part: str) -> float:
        if not expected[part] or not measured[part]:
            return whole
        return min(max(measured[part] / expected[part], whole / _BOUND), whole * _BOUND)

    return sum(seconds * correction(part) for part, seconds in wanted.items())


def summary(found: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Median and 90th percentile of the factors, and how often each way says rightly which of the two is faster."""
    rows: dict[str, Any] = {"cases": len(found)}
    for way in ("predicted", "by_step", "by_parts"):
        off = sorted(abs(log(one[way] / one["timed"])) for one in found.values())
        rows[way] = {"median": round(exp(median(off)), 3), "p90": round(exp(off[int(0.9 * (len(off) - 1))]), 3)}
    rows["parts_nearer_than_step"] = sum(
        abs(log(one["by_parts"] / one["timed"])) < abs(log(one["by_step"] / one["timed"])) for one in found.values()
    )
    return rows


def main() -> None:
    """Read, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    told = {one.name: predictions(one) for one in sorted(given.folder.iterdir()) if one.is_dir()}
    found = {name: one for name, one in told.items() if one is not None}
    answer = summary(found) | {"rows": {name: {k: round(v, 5) for k, v in one.items()} for name, one in found.items()}}
    print(json.dumps(answer) if given.json else json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
