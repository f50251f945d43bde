"""The predictor against trials that ran on a real GPU: percent by which memory and speed were off.

python -m benchmarks.gpu_trials [--data benchmarks/data/h200_trials.jsonl] [--json]

The rows are results of `tests/gpu` (SHARDTUNE_GPU_TEST_RESULTS) and runs of one study of another model. Each is predicted
from the catalogue's rates, without a figure of this card; the study's also as the product predicts them once the tests'
trials have calibrated it, so that nothing is scored on rows it was fitted on.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu_trials.rows import Errors, errors, read, summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line per trial, or everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("benchmarks/data/h200_trials.jsonl"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    trials = errors(read(options.data))
    if options.json:
        print(json.dumps({"summary": summary(trials), "trials": [asdict(trial) for trial in trials]}))
        return 0
    for trial in trials:
        print(_line(trial))
    for name, value in summary(trials).items():
        print(f"{name}: {value}")
    return 0


def _line(trial: Errors) -> str:
    calibrated = "" if trial.speed_once_calibrated is None else f", calibrated {trial.speed_once_calibrated:+.1f} %"
    return (
        f"memory {trial.memory:+6.1f} %, speed {trial.speed:+7.1f} %{calibrated}: {trial.trial}, {trial.precision} "
        f"({trial.source})"
    )


if __name__ == "__main__":
    sys.exit(main())
