"""The predictor against this machine's own CPU ranks: draw configurations, run them for real, record, score.

python -m benchmarks.own_trials draw --plan PLAN.csv [--job NAME ...]
python -m benchmarks.own_trials run --plan PLAN.csv --rounds 2 --minutes 4.5   (again and again, until nothing is left)
python -m benchmarks.own_trials score [--data benchmarks/data/own_trials.csv] [--json]

Ranks are started by the worker's own launcher and run the worker's own code; what is recorded is what a study would get.
Each round runs every configuration once, in an order of its own over all jobs and strategies: what else the machine does
meanwhile falls on no kind of configuration, and two runs of one are far apart.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.own_trials.cases import JOBS, SEED, draw, remaining
from benchmarks.own_trials.runs import PLAN, append, execute, outcome, text_of, workplace
from benchmarks.own_trials.scores import Row, read, report
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.leases import ModelSummaryTask, TrialTask
from shardtune.api_schemas.trials.measurements import Measurement

PLANNED = ("job", "strategy", "config")
COLUMNS = (
    *PLANNED, "round", "started", "peak_allocated_mib", "step_time_s", "half_width_s", "failure", "fingerprint",
)  # fmt: skip


def plan(names: list[str], path: Path, seed: int) -> None:
    """Write the configurations drawn for these jobs."""
    with tempfile.TemporaryDirectory() as folder, workplace(Path(folder)) as place:
        for number, name in enumerate(names):
            job = JOBS[name]
            model_summary = execute(place, ModelSummaryTask(model=job.model, workload=job.workload), number)
            assert isinstance(model_summary, ModelSummary), model_summary
            for strategy, config in draw(job, model_summary, seed):
                append(path, PLANNED, {"job": name, "strategy": strategy, "config": text_of(config)})


def run(planned: list[Row], data: Path, rounds: int, minutes: float) -> None:
    """Run what the file does not hold yet and append it row by row; no run begins after `minutes`."""
    remaining_rows = remaining(planned, read(data) if data.exists() else [], rounds)
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder, workplace(Path(folder)) as place:
        for number, row in enumerate(remaining_rows):
            if time.monotonic() > end:
                print(f"{len(remaining_rows) - number} runs are left", flush=True)
                return
            job, config = JOBS[row["job"]], TrialConfig.model_validate_json(row["config"])
            task = TrialTask(model=job.model, workload=job.workload, cluster=job.cluster, config=config, plan=PLAN)
            begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            result = execute(place, task, number)
            assert not isinstance(result, ModelSummary)
            append(data, COLUMNS, row | {"started": begun} | outcome(result, place.fingerprint))
            print(f"{begun} {row['job']} {config.describe()}: {_short(result)}", flush=True)


def _short(result: Measurement | Failure) -> str:
    if isinstance(result, Failure):
        return f"{result.kind}: {result.message}"
    return f"{(result.memory.peak_allocated_gib or 0) * 1024:.1f} MiB, {result.step_time_s:.3f} s"


def main() -> int:
    """Draw, run or score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("draw", "run", "score"))
    parser.add_argument("--job", choices=sorted(JOBS), action="append", help="draw for these (default: all)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the draw: another one for rows kept apart")
    parser.add_argument("--plan", type=Path, default=Path("own_plan.csv"), help="drawn configurations")
    parser.add_argument("--data", type=Path, default=Path("benchmarks/data/own_trials.csv"))
    parser.add_argument("--rounds", type=int, default=1, help="times each configuration is run")
    parser.add_argument("--minutes", type=float, default=60.0, help="no run begins later")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.action == "draw":
        plan(options.job or list(JOBS), options.plan, options.seed)
    elif options.action == "run":
        run(read(options.plan), options.data, options.rounds, options.minutes)
    else:
        print(json.dumps(report(read(options.data)), indent=None if options.json else 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
