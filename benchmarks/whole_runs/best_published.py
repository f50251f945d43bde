"""Best published speeds over best predicted ones: `python -m benchmarks.whole_runs.best_published`.

For each source, model, GPU and number of GPUs, the fastest published run in 16 bits is compared with the fastest
configuration that a plan predicts. The spread is that of a plan's predicted rows (`tuner/plans/speeds.py`).
"""

import csv
import json
import math
import sys
from collections import defaultdict
from dataclasses import replace
from statistics import median

from benchmarks.predictor.rows import Case, Skipped, hardware_aliases, read
from benchmarks.scaling.groups import DATA
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.tuner.plans.layouts import plan_layouts
from shardtune.tuner.plans.speeds import speeds_of_kind
from shardtune.tuner.prediction import prediction_request

_ARCHITECTURES = ("ampere", "hopper")
_FEWEST_GPUS = 8
_SMALLEST_B = 0.5


def _fastest_cases() -> list[Case]:
    aliases = hardware_aliases(DATA / "hardware.csv")
    fastest: dict[tuple[str, ...], Case] = {}
    for name in ("published", "internevo_scaling"):
        with (DATA / f"{name}.csv").open(newline="", encoding="utf-8") as lines:
            for line in csv.DictReader(lines):
                try:
                    case = read(line, aliases)
                except Skipped:
                    continue
                if case.crashed or not line["tokens_per_s_per_gpu"] or not _is_comparable(case):
                    continue
                key = tuple(line[field] for field in ("source", "model_name", "gpu", "n_gpus", "seq_len"))
                known = fastest.get(key)
                if known is None or _speed(case) > _speed(known):
                    fastest[key] = case
    return list(fastest.values())


def _is_comparable(case: Case) -> bool:
    row = case.row
    return (
        row["precision"] in ("bf16", "fp16", "")
        and case.gpu.architecture in _ARCHITECTURES
        and int(row["n_gpus"]) >= _FEWEST_GPUS
        and float(row["n_params_b"] or 0) >= _SMALLEST_B
    )


def _speed(case: Case) -> float:
    return float(case.row["tokens_per_s_per_gpu"])


def _best_predicted(case: Case) -> float | None:
    row, gpus = case.row, int(case.row["n_gpus"])
    batch = int(row["global_batch"] or 0) or int(row["micro_batch"]) * int(row["grad_accum"] or 1) * gpus
    asked = PredictionRequest(model="llama-3.1-8b", cluster=f"2x8x{case.gpu.name}")
    resolved = replace(prediction_request.resolve(asked), shape=case.shape, sequence=int(row["seq_len"]))
    layouts = plan_layouts(case.shape, [gpus], 8, resolved.sequence, batch)
    fastest = speeds_of_kind(resolved, layouts, batch, ()).fastest(gpus) if layouts else None
    return fastest.tokens_per_s_per_gpu.expected if fastest else None


def main() -> int:
    """Command line."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for case in _fastest_cases():
        best = _best_predicted(case)
        if best is not None:
            ratios[f"{case.row['source'].partition(':')[0]}, {case.gpu.name}"].append(_speed(case) / best)
    medians = {source: round(median(values), 3) for source, values in ratios.items()}
    spread = math.sqrt(sum(math.log(value) ** 2 for value in medians.values()) / len(medians))
    print(json.dumps({"median": median(medians.values()), "log_rms": round(spread, 3), "by_source": medians}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
