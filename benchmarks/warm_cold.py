"""Cost of starting a trial: ranks forked from the fork server against ranks started by torchrun.

Run: python -m benchmarks.warm_cold --json [--repeats 10]

For each backend one configuration of a tiny model on 2 CPU ranks, by turns warm and cold: the same rank code, DeepSpeed's
operators built and bytecode written beforehand. A start counts from the order to launch to the slowest rank's first
forward, a teardown from the slowest rank's last step to the end of the last process.
Prints `{"by_backend": {"zero": {"warm_s": …, "cold_s": …, "ratio": …}, …}}`: medians of start plus teardown, in seconds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardtune.api_schemas.training.search_space import BACKENDS
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.workers.agent.supervise import RunLimits, supervise
from shardtune.workers.clock import now_s
from shardtune.workers.launch import LAUNCHED, Launch
from shardtune.workers.launchers.fork_server import ForkServerLauncher
from shardtune.workers.launchers.operators import BUILD_COMMAND
from shardtune.workers.trial_dir import TrialDir

RANKS = 2
MODEL = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    "zero": {"kind": "zero", "stage": 2},
    "fsdp1": {"kind": "fsdp1", "dp_shard": RANKS},
    "fsdp2": {"kind": "fsdp2", "dp_shard": RANKS},
}
_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
_LIMIT_S = 120.0

Start = Callable[[TrialDir], float]
"""Runs the task of a trial directory; returns the seconds from its launch to the end of its last process."""


def task(strategy: dict[str, Any]) -> TrialTask:
    """Plan of as few steps as a measurement allows: only what comes before and after them is of interest."""
    return TrialTask.model_validate(
        {
            "model": MODEL,
            "workload": {"sequence_length": 32, "global_batch": 4, "precision": "fp32"},
            "cluster": {"device": "cpu", "gpus_per_node": RANKS, "memory_gib": 4, "host_memory_gib": 8},
            "config": {"strategy": strategy, "micro_batch": 1},
            "plan": {
                "parity_steps": 2,
                "max_warmup_steps": 1,
                "window_steps": 1,
                "min_windows": 2,
                "max_windows": 2,
                "min_measure_s": 0,
            },
        }
    )


def warm_start(launcher: ForkServerLauncher) -> Start:
    """Start ranks by the fork server, as the worker does."""

    def start(directory: TrialDir) -> float:
        return supervise(launcher, directory, Launch.of(RANKS), RunLimits(_LIMIT_S, _LIMIT_S), lambda: None).elapsed_s

    return start


def cold_start(directory: TrialDir) -> float:
    """Start ranks by torchrun, one new interpreter per rank."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command += ["-m", "shardtune.workers.rank", str(directory.path)]
    began_s = now_s()
    with (directory.path / "torchrun.log").open("wb") as log:
        # A rank that could not leave its peers in time ends by SIGALRM after its report, which torchrun calls a failure.
        environment = {**_ENVIRONMENT, LAUNCHED: str(began_s)}
        subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=_LIMIT_S, check=False)
    return now_s() - began_s


def overhead_s(start: Start, folder: Path, trial: TrialTask) -> float:
    """Seconds of one run before its first forward and after its last step."""
    folder.mkdir()
    (folder / "task.json").write_text(trial.model_dump_json())
    took_s = start(TrialDir(folder))
    reports = [RankReport.model_validate_json((folder / f"rank_{rank}.json").read_bytes()) for rank in range(RANKS)]
    firsts = [report.first_forward_s for report in reports if report.first_forward_s is not None]
    lasts = [report.steps_ended_s for report in reports if report.steps_ended_s is not None]
    if len(firsts) < RANKS or len(lasts) < RANKS:
        raise SystemExit(f"a run failed: {[report.failure for report in reports]}")
    return max(firsts) + took_s - max(lasts)


def measure(repeats: int, folder: Path) -> dict[str, dict[str, list[float]]]:
    """Seconds of every run, by backend and kind of start."""
    subprocess.run(BUILD_COMMAND, check=True)
    configurations = {name: strategy for name, strategy in CONFIGURATIONS.items() if name in BACKENDS}
    launcher = ForkServerLauncher(_ENVIRONMENT, f"warm-cold-{os.getpid()}", folder / "host.log")
    starts: dict[str, Start] = {"warm": warm_start(launcher), "cold": cold_start}
    seconds: dict[str, dict[str, list[float]]] = {name: {"warm": [], "cold": []} for name in configurations}
    try:
        launcher.prepare(lambda: False)
        # Round 0 writes the bytecode and fills the page cache, and does not count.
        for round_ in range(repeats + 1):
            for name, strategy in configurations.items():
                for kind, start in starts.items():
                    spent_s = overhead_s(start, folder / f"{name}-{kind}-{round_}", task(strategy))
                    if round_:
                        seconds[name][kind].append(spent_s)
                        sys.stderr.write(f"round {round_} of {repeats}: {name} {kind} {spent_s:.2f} s\n")
    finally:
        launcher.close()
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--repeats", type=int, default=10, help="runs of each kind and configuration (10)")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats ({options.repeats}) must be at least 1")
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(options.repeats, Path(folder))
    by_backend = {name: _summary(runs["warm"], runs["cold"]) for name, runs in seconds.items()}
    if options.json:
        print(json.dumps({"by_backend": by_backend}))
        return
    for name, row in by_backend.items():
        print(f"{name:6} warm {row['warm_s']:.2f} s, cold {row['cold_s']:.2f} s, {row['ratio']:.1f}×")


def _summary(warm: list[float], cold: list[float]) -> dict[str, Any]:
    warm_s, cold_s = statistics.median(warm), statistics.median(cold)
    return {
        "warm_s": round(warm_s, 3),
        "cold_s": round(cold_s, 3),
        "ratio": round(cold_s / warm_s, 2),
        "warm_range_s": [round(min(warm), 3), round(max(warm), 3)],
        "cold_range_s": [round(min(cold), 3), round(max(cold), 3)],
    }


if __name__ == "__main__":
    main()
