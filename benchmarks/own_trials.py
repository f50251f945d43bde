"""The predictor against this machine's own CPU ranks: run configurations for real, record, score.

python -m benchmarks.own_trials run --job llama-bf16 --data benchmarks/data/own_trials.csv   (a few seconds a trial)
python -m benchmarks.own_trials score --data benchmarks/data/own_trials.csv [--json]

Ranks are started by the worker's own launcher and run the worker's own code; what is recorded is what a study would get.
"""

import argparse
import csv
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from api_schemas.base import GIB
from api_schemas.failures import Failure
from api_schemas.hardware import Fingerprint
from api_schemas.leases import ProfileTask, TrialTask
from api_schemas.measurements import Measurement, MeasurePlan
from api_schemas.models import ModelProfile
from api_schemas.strategies import TrialConfig
from benchmarks.own_cases import JOBS, SEED, Job, draw
from benchmarks.own_scores import read, report
from workers.attempt import Workplace, attempt
from workers.hardware import Libraries, find_gpus, fingerprint
from workers.launchers.local import LocalLauncher
from workers.supervise import Limits
from workers.trial_dir import TrialDir

COLUMNS = ("job", "strategy", "config", "peak_allocated_mib", "step_time_s", "half_width_s", "failure", "fingerprint")
PLAN = MeasurePlan(parity_steps=2, max_warmup_steps=1, window_steps=1, min_windows=4, max_windows=4)
_LIMITS = Limits(deadline_s=540, no_progress_s=500)


@contextmanager
def workplace(folder: Path) -> Iterator[Workplace]:
    """A warm host of four CPU ranks at most; one thread each, as on a machine that others use."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
    launcher = LocalLauncher(environment, f"own-trials-{os.getpid()}", folder / "host.log", 600)
    try:
        versions = launcher.prepare(lambda: False).versions
        found = fingerprint(find_gpus().first(2), Libraries().updated(versions))
        yield Workplace(folder, launcher, found, ranks=4, peak_flops=None, min_free_gib=1)
    finally:
        launcher.close()


def execute(place: Workplace, task: TrialTask | ProfileTask, number: int) -> Measurement | ModelProfile | Failure:
    """Run a task to its outcome."""
    done = attempt(
        place,
        task,
        lambda: TrialDir.create(place.work_dir, f"run-{number}", task, place.fingerprint, place.min_free_gib),
        _LIMITS,
        lambda: None,
    )
    assert done is not None
    return done.result


def run(job: Job, data: Path) -> None:
    """Run what the file does not hold yet and append it row by row."""
    known = {(row["job"], row["config"]) for row in read(data)} if data.exists() else set()
    with tempfile.TemporaryDirectory() as folder, workplace(Path(folder)) as place:
        profile = execute(place, ProfileTask(model=job.model, workload=job.workload), 0)
        assert isinstance(profile, ModelProfile), profile
        drawn = list(draw(job, profile))
        # In an order of their own: what else the machine does meanwhile must not fall on one strategy.
        random.Random(f"{SEED}:{job.name}").shuffle(drawn)
        for number, (strategy, config) in enumerate(drawn, start=1):
            text = text_of(config)
            if (job.name, text) in known:
                continue
            task = TrialTask(model=job.model, workload=job.workload, cluster=job.cluster, config=config, plan=PLAN)
            result = execute(place, task, number)
            assert not isinstance(result, ModelProfile)
            append(data, row_of(job, strategy, text, result, place.fingerprint))
            print(f"{job.name} {number} {config.describe()}: {_short(result)}", flush=True)


def text_of(config: TrialConfig) -> str:
    """What differs from the defaults, and the kind of strategy."""
    plain = config.model_dump(mode="json", exclude_defaults=True)
    return json.dumps({**plain, "strategy": {"kind": config.backend, **plain["strategy"]}})


def row_of(job: Job, strategy: str, config: str, result: Measurement | Failure, found: Fingerprint) -> dict[str, str]:
    """One line of the file."""
    row = {"job": job.name, "strategy": strategy, "config": config, "fingerprint": found.content_key()}
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


def append(data: Path, row: dict[str, str]) -> None:
    """Add a line, and the header before the first."""
    is_new = not data.exists()
    with data.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, COLUMNS, restval="")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def main() -> int:
    """Run or score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "score"))
    parser.add_argument("--job", choices=sorted(JOBS), action="append", help="default: all")
    parser.add_argument("--data", type=Path, default=Path("benchmarks/data/own_trials.csv"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.action == "run":
        for name in options.job or JOBS:
            run(JOBS[name], options.data)
        return 0
    scores = report(read(options.data))
    print(json.dumps(scores, indent=None if options.json else 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
