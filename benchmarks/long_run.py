"""Does a job run as fast as its trial? Each backend's winner of one study, exported and run by its consumer, against our trial.

Run: python -m benchmarks.long_run --json [--study FILE] [--exports DIR] [--backends ddp zero …] [--pairs 5] [--steps 100]

Without `--exports`, `shardtune tune` searches the study first, and the fastest trial of each backend is exported to DIR/BACKEND.
With it, exports made before are taken, so that the pairs can be run in pieces. Then, PAIRS times by turns (AB BA AB …): the
exported files under torchrun as `launch.sh` starts them (train_snippet.py; for ZeRO that is deepspeed.initialize with
ds_config.json), and our own trial of config.json with as many timed steps. Compared is the median over windows of ten steps
of the seconds per step, after the first WARM_UP steps; both wait for the ranks' results within the timed part.
Prints `{"by_backend": {"ddp": {"ratio": …, "ci95": […, …], …}, …}}`: consumer's time over ours, geometric mean of the pairs
with its t-interval on logarithms, and the median pair.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from shardtune.api_schemas.training.search_space import BACKENDS
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.service.cli.local_stack import local_service, state_directory

STUDY = Path("examples/llama-tiny.json")
WARM_UP = 20
WINDOW = 10
_LIMIT_S = 570.0
_RATE = re.compile(r"^step (\d+): .* ([\d,]+) tokens/s/GPU$", re.MULTILINE)
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t for 1 to 9 degrees of freedom."""


def search(study: Path, folder: Path, trials: int) -> None:
    """Tune, and export the fastest trial of each backend to a folder of its name."""
    state = folder / "state"
    command = [sys.executable, "-m", "shardtune", "tune", str(study), "--json", "--max-trials", str(trials)]
    command += ["--state-dir", str(state), "--out", str(folder / "best")]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    with state_directory(state) as path, local_service(path) as client:
        actual_study = client.studies()[0]
        complete = [trial for trial in client.trials(actual_study.study_id) if trial.state is TrialState.COMPLETE]
        for backend in BACKENDS:
            own = [trial for trial in complete if trial.config.backend == backend]
            if not own:
                sys.stderr.write(f"no trial of {backend} is complete; it is left out\n")
                continue
            winner = max(own, key=lambda trial: trial.tokens_per_s_per_gpu or 0.0)
            (folder / backend).mkdir(exist_ok=True)
            for name, text in client.export(actual_study.study_id, str(winner.number)).files.items():
                (folder / backend / name).write_text(text)


def consumer_step_s(export: Path, task: TrialTask, steps: int) -> float:
    """Seconds per step of the exported files under torchrun, by rank 0's clock around each step."""
    command = ["bash", str(export / "launch.sh"), "--steps", str(WARM_UP + steps)]
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=_LIMIT_S, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise SystemExit(f"{export} failed:\n{done.stderr[-4000:]}")
    tokens = task.workload.tokens_per_step / task.cluster.world_size
    seconds = [tokens / float(rate.replace(",", "")) for _, rate in _RATE.findall(done.stdout)][WARM_UP:]
    if len(seconds) != steps:
        raise SystemExit(f"{export} printed {len(seconds)} timed steps instead of {steps}")
    return median(fmean(seconds[i : i + WINDOW]) for i in range(0, steps, WINDOW))


def trial_step_s(task: TrialTask, steps: int) -> float:
    """Seconds per step of our own trial, run as a worker runs it, with as many timed steps."""
    plan = task.plan.model_copy(
        update={
            "max_warmup_steps": WARM_UP - task.plan.parity_steps, "window_steps": WINDOW, "max_measure_s": _LIMIT_S,
            "min_windows": steps // WINDOW, "max_windows": steps // WINDOW,
        }
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "shardtune.workers", "run-trial", "-", "--json", "--work-dir", folder]
        command += ["--ranks", str(task.cluster.world_size), "--memory-gib", str(task.cluster.memory_gib)]
        text = task.model_copy(update={"plan": plan}).model_dump_json()
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode:
        raise SystemExit(f"the trial failed:\n{done.stdout}\n{done.stderr[-4000:]}")
    measured: list[float] = json.loads(done.stdout)["window_step_times_s"]
    return median(measured)


def pairs(export: Path, count: int, steps: int) -> list[float]:
    """Consumer's seconds over ours, one ratio per pair; the order alternates so that drift cancels."""
    task = TrialTask.model_validate_json((export / "config.json").read_text())
    ratios = []
    for pair in range(count):
        if pair % 2 == 0:
            theirs, ours = consumer_step_s(export, task, steps), trial_step_s(task, steps)
        else:
            ours, theirs = trial_step_s(task, steps), consumer_step_s(export, task, steps)
        ratios.append(theirs / ours)
        sys.stderr.write(f"{export.name} pair {pair + 1}: consumer {theirs:.4f} s, trial {ours:.4f} s a step\n")
    return ratios


def summary(ratios: list[float], description: str) -> dict[str, Any]:
    """Geometric mean and t-interval on logarithms; within 3 %, or an interval that holds 1, is what is asked for."""
    logs = [math.log(ratio) for ratio in ratios]
    half = _T_975[len(logs) - 2] * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    low, high = (math.exp(fmean(logs) + sign * half) for sign in (-1, 1)) if half < math.inf else (0.0, None)
    middle = median(ratios)
    holds = high is None or low <= 1 <= high
    return {
        "ratio": round(math.exp(fmean(logs)), 4),
        "ci95": [round(low, 4), round(high, 4) if high is not None else None],
        "half_width": round(math.expm1(half), 4) if half < math.inf else None,
        "median_ratio": round(middle, 4),
        "as_measured": abs(middle - 1) <= 0.03 or holds,
        "pairs": [round(ratio, 4) for ratio in ratios],
        "config": description,
    }


def main() -> None:
    """Search where nothing is given, run the pairs, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--study", type=Path, default=STUDY, help=f"study file ({STUDY})")
    parser.add_argument("--trials", type=int, default=24, help="trials of the search (24)")
    parser.add_argument("--exports", type=Path, help="folder of exports by backend; made where it is missing")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--pairs", type=int, default=5, choices=range(1, 11), help="pairs of runs per backend (5)")
    parser.add_argument("--steps", type=int, default=100, help="timed steps of each run (100), a multiple of ten")
    options = parser.parse_args()
    if options.steps < 2 * WINDOW or options.steps % WINDOW:
        parser.error(f"--steps ({options.steps}) must be a multiple of {WINDOW} of at least {2 * WINDOW}; e.g. 100")
    folder = options.exports or Path(tempfile.mkdtemp(prefix="long-run-"))
    if options.exports is None or not folder.is_dir():
        folder.mkdir(exist_ok=True)
        search(options.study, folder, options.trials)
    by_backend = {}
    for backend in options.backends:
        export = folder / backend
        if (export / "config.json").exists():
            config = TrialTask.model_validate_json((export / "config.json").read_text()).config
            by_backend[backend] = summary(pairs(export, options.pairs, options.steps), config.describe())
    if options.json:
        print(json.dumps({"by_backend": by_backend}))
        return
    for backend, row in by_backend.items():
        print(f"{backend:6} {row['ratio']:.3f} {row['ci95']} ({row['config']})")


if __name__ == "__main__":
    main()
