"""Padded, grouped and packed samples: real trials on two CPU ranks beside what the product predicts for them.

python -m benchmarks.sample_layouts [--rounds 3] [--json]

A Zipf-like histogram of lengths is trained with each layout under seven configurations, and each configuration with equal
lengths, too. The predictor's speed is calibrated by the trials with equal lengths alone, so no scored trial was fitted.
Each round runs every trial once, in an order of its own.
"""

import argparse
import json
import random
import tempfile
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

from benchmarks.own_trials.runs import PLAN, execute, workplace
from benchmarks.sample_layouts.cases import CLUSTER, MODEL, Case, cases
from benchmarks.sample_layouts.report import Trial, as_text, report
from benchmarks.service.figures import machine
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import Measurement


def measure(rounds: int) -> list[Trial]:
    """Run every case once in each round.

    Raises:
        RuntimeError: a trial failed; the benchmark says nothing without it.
    """
    planned = list(cases())
    measurements: dict[int, list[Measurement]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, workplace(Path(folder), ranks=CLUSTER.world_size) as place:
        for number in range(rounds):
            for index in random.Random(number).sample(range(len(planned)), len(planned)):
                result = execute(place, _task(planned[index]), number * len(planned) + index)
                if not isinstance(result, Measurement):
                    raise RuntimeError(f"{planned[index].layout}, {planned[index].config.describe()}: {result}")
                measurements[index].append(result)
    return [Trial(case, tuple(measurements[index])) for index, case in enumerate(planned)]


def _task(case: Case) -> TrialTask:
    return TrialTask(model=MODEL, workload=case.workload, cluster=CLUSTER, config=case.config, plan=PLAN)


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="times each trial is run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = report(measure(options.rounds)) | {"processor": machine()["cpu"], "torch": version("torch")}
    print(json.dumps(figures, indent=1) if options.json else as_text(figures))


if __name__ == "__main__":
    main()
