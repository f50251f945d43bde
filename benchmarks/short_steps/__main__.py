"""Step times extended from short steps against whole steps, on two real CPU ranks.

`python -m benchmarks.short_steps --json [--rounds 12] [--micro-batches 24]`

Each configuration is built by the ranks' own code. Its steps take turns: a short step, a longer one, a whole one, so that
a slower minute of the machine falls on all three. The two counts are those that the product's planner gives, and the
product's formula extends them. Peaks are those of two recorded steps of each kind, in models built for each.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.short_steps import report
from benchmarks.short_steps.configurations import CONFIGURATIONS, task_of

RANKS = 2


def measure(names: list[str], rounds: int, micro_batches: int, folder: Path) -> list[dict[str, Any]]:
    """Train the configurations of these names on two ranks; returns a row of figures of each."""
    tasks = {name: task_of(CONFIGURATIONS[name], micro_batches).model_dump(mode="json") for name in names}
    (folder / "tasks.json").write_text(json.dumps({"rounds": rounds, "tasks": tasks}))
    quiet = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    processes = []
    for rank in range(RANKS):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
        environment = os.environ | quiet | {name: str(value) for name, value in place.items()}
        command = [sys.executable, "-m", "benchmarks.short_steps.ranks", str(folder)]
        with (folder / f"rank-{rank}.txt").open("w") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        codes = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        raise SystemExit(f"the ranks ended with {codes}: {(folder / 'rank-0.txt').read_text()[-3000:]}")
    rows: list[dict[str, Any]] = json.loads((folder / "figures.json").read_text())
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--only", action="extend", nargs="+", default=[], choices=list(CONFIGURATIONS))
    parser.add_argument("--rounds", type=int, default=12, help="turns of short, longer and whole step")
    parser.add_argument("--micro-batches", type=int, default=24, help="micro batches of a whole step on each rank")
    options = parser.parse_args()
    if options.rounds < 4:
        parser.error(f"--rounds ({options.rounds}) must be at least 4, two for each half that shows the noise; use 12")
    if options.micro_batches < 10 or options.micro_batches % 2:
        parser.error(
            f"--micro-batches ({options.micro_batches}) must be even and at least 10; short steps pay from there"
        )
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options.only or list(CONFIGURATIONS), options.rounds, options.micro_batches, Path(folder))
    figures = report.figures(rows)
    print(json.dumps(figures) if options.json else report.as_text(figures))


if __name__ == "__main__":
    main()
