"""Does `shardtune explain` name what was planted, and is it silent where nothing was?

Run: python -m benchmarks.diagnosis --json [--runs 5] [--healthy 20] [--pairs 3] [--first-seed 100] [--folder FOLDER]

Cases are drawn by seeds of which no threshold of the rules has seen any (`cases.SET_ON` are those that they were set on). Each
is run on 2 CPU ranks under the profiler as `explain` does, those with a slow link in a network namespace of their own (root),
and read as `explain` reads them. Then the remedy of each planted mistake that was named runs in alternating pairs with the
configuration it would change; its gain is the median ratio of their step times, by pairs. What is recorded already is not run again.
Messages are held against what the same link gave when it was measured, for a planted slow link against what it should give.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.diagnosis import cases, score
from benchmarks.diagnosis.record import REMEDY, rates, ratios_of

_LIMIT_S = 3000.0


def main() -> None:
    """Record, score, try the remedies, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="diagnosis-") as name:
        folder = options.folder or Path(name)
        seeds = range(options.first_seed, options.first_seed + options.runs)
        chosen = [(seed, case) for seed in seeds for case in cases.planted(seed)]
        later = range(options.first_seed, options.first_seed + options.healthy)
        chosen += [(seed, case) for seed in later for case in cases.healthy(seed)][: options.healthy]
        folders = [folder / f"{case.name}-{seed}" for seed, case in chosen]
        folder.mkdir(parents=True, exist_ok=True)
        for link in {case.measured_mbit for _, case in chosen if not case.is_own_job}:
            if not (into := rates(folder, link)).exists():
                _start("rates", folder, 0, [str(into)], link)
        _run("record", folder, [item for item, at in zip(chosen, folders, strict=True) if not (at / "traces").is_dir()])
        scored = [score.score_folder(at) for at in folders]
        with_remedy = [(item.seed, item.case) for item in scored if options.pairs and (item.folder / REMEDY).exists()]
        _run("pairs", folder, with_remedy, options.pairs)
        answer = score.summary(scored, {at: ratios_of(at) for at in folders})
    print(json.dumps(answer) if options.json else json.dumps(answer, indent=1))


def _run(label: str, folder: Path, some: list[tuple[int, cases.Case]], pairs: int = 0) -> None:
    """Run cases in one process for each speed of the link."""
    by_link = defaultdict(list)
    for seed, case in some:
        by_link[case.link_mbit].append(f"{case.name}:{seed}")
    for link_mbit, names in by_link.items():
        _start(label, folder, pairs, names, link_mbit)


def _start(label: str, folder: Path, pairs: int, names: list[str], link_mbit: int | None) -> None:
    command = [sys.executable, "-m", "benchmarks.diagnosis.record", label, str(folder), str(pairs), *names]
    done = subprocess.run(
        _linked(command, link_mbit),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{label} of {', '.join(names)} failed")


def _linked(command: list[str], link_mbit: int | None) -> list[str]:
    if link_mbit is None:
        return command
    shaped = f"ip link set lo up && tc qdisc add dev lo root tbf rate {link_mbit}mbit burst 256kb latency 400ms"
    return ["unshare", "-n", "bash", "-c", f'{shaped} && exec "$@"', "bash", *command]


if __name__ == "__main__":
    main()
