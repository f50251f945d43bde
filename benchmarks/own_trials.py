"""The predictor against this machine's own CPU ranks: draw configurations, run them for real, record, score.

python -m benchmarks.own_trials draw --plan PLAN.csv [--job NAME ...]
python -m benchmarks.own_trials run --plan PLAN.csv --rounds 2 --minutes 4.5   (again and again, until nothing is left)
python -m benchmarks.own_trials score [--data benchmarks/data/own_trials.csv] [--json]

Ranks are started by the worker's own launcher and run the worker's own code; what is recorded is what a study would get.
Each round runs every configuration once, in an order of its own over all jobs and strategies: what else the machine does
meanwhile falls on no kind of configuration, and two runs of one are far apart.
"""

import argparse
import csv
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.own_cases import JOBS, SEED, draw, remaining
from benchmarks.own_scores import Row, read, report
from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.diagnosis import Traced
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.leases import ModelSummaryTask, Task, TrialTask
from shardtune.api_schemas.trials.measurements import Measurement, MeasurePlan
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.workers.agent.attempt import Attempted, Workplace, attempt
from shardtune.workers.agent.supervise import RunLimits
from shardtune.workers.launchers.local import LocalLauncher
from shardtune.workers.machine import library_probe
from shardtune.workers.machine.conditions import HostObserver
from shardtune.workers.machine.inventory import find_gpus, fingerprint
from shardtune.workers.trial_dir import TrialDir

PLANNED = ("job", "strategy", "config")
COLUMNS = (
    *PLANNED, "round", "started", "peak_allocated_mib", "step_time_s", "half_width_s", "failure", "fingerprint",
)  # fmt: skip
PLAN = MeasurePlan(parity_steps=2, max_warmup_steps=1, window_steps=1, min_windows=4, max_windows=4, min_measure_s=0)
_LIMITS = RunLimits(deadline_s=240, no_progress_s=200)


@contextmanager
def workplace(folder: Path, ranks: int = 4) -> Iterator[Workplace]:
    """A fork server of so many CPU ranks at most; one thread each, as on a machine that others use."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
    launcher = LocalLauncher(
        environment, f"own-trials-{os.getpid()}", folder / "host.log", 600, observer=HostObserver(None)
    )
    try:
        gpus = find_gpus().first(2)
        found = fingerprint(gpus, library_probe.found(launcher.prepare(lambda: False), gpus))
        yield Workplace(folder, launcher, found, ranks=ranks, peak_flops=None, min_free_gib=1)
    finally:
        launcher.close()


def execute(place: Workplace, task: TrialTask | ModelSummaryTask, number: int) -> Measurement | ModelSummary | Failure:
    """Run a task to its outcome."""
    result = attempted(place, task, number).result
    assert not isinstance(result, ResumeMeasurement | Traced)
    return result


def attempted(place: Workplace, task: Task, number: int) -> Attempted:
    """Run any task, in the folder of this number."""
    done = attempt(
        place,
        task,
        lambda: TrialDir.create(place.work_dir, f"run-{number}", task, place.fingerprint, place.min_free_gib),
        _LIMITS,
        lambda: None,
    )
    assert done is not None
    return done


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
    left = remaining(planned, read(data) if data.exists() else [], rounds)
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder, workplace(Path(folder)) as place:
        for number, row in enumerate(left):
            if time.monotonic() > end:
                print(f"{len(left) - number} runs are left", flush=True)
                return
            job, config = JOBS[row["job"]], TrialConfig.model_validate_json(row["config"])
            task = TrialTask(model=job.model, workload=job.workload, cluster=job.cluster, config=config, plan=PLAN)
            begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            result = execute(place, task, number)
            assert not isinstance(result, ModelSummary)
            append(data, COLUMNS, row | {"started": begun} | outcome(result, place.fingerprint))
            print(f"{begun} {row['job']} {config.describe()}: {_short(result)}", flush=True)


def text_of(config: TrialConfig) -> str:
    """What differs from the defaults, and the kind of strategy."""
    plain = config.model_dump(mode="json", exclude_defaults=True)
    return json.dumps({**plain, "strategy": {"kind": config.backend, **plain["strategy"]}})


def outcome(result: Measurement | Failure, found: Fingerprint) -> Row:
    """The measured columns of one line."""
    row = {"fingerprint": found.content_key()}
    if isinstance(result, Failure):
        return row | {"failure": f"{result.kind}: {result.message[:200]}"}
    peak = result.memory.peak_allocated_gib
    return row | {
        "peak_allocated_mib": f"{peak * GIB / 2**20:.3f}" if peak is not None else "",
        "step_time_s": f"{result.step_time_s:.5f}",
        "half_width_s": f"{result.step_time_half_width_s:.5f}",
    }


def _short(result: Measurement | Failure) -> str:
    if isinstance(result, Failure):
        return f"{result.kind}: {result.message}"
    return f"{(result.memory.peak_allocated_gib or 0) * 1024:.1f} MiB, {result.step_time_s:.3f} s"


def append(path: Path, columns: tuple[str, ...], row: Row) -> None:
    """Add a line, and the header before the first."""
    is_new = not path.exists()
    with path.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, columns, restval="")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


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
