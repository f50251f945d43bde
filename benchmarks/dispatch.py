"""`python -m benchmarks.dispatch`: from the order to the first forward, and from the last step to its end, over hosts and here.

Two hosts with a rank each under Slurm, then under Ray, each by turns with two ranks of the local launcher. Exit code 1 where a
gang takes over a second more.
"""

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

from shardtune.api_schemas.machines.engines import EngineName, LauncherName
from shardtune.api_schemas.trials.leases import TrialTask
from tests.lab.laboratory import for_this_process
from tests.lab.session import GangSession
from tests.support.ranks.tiny_tasks import tiny_task

MOST_MORE_S = 1.0


def main() -> int:
    """Measure; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dispatch", description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in get_args(LauncherName)}
    for engine in get_args(EngineName):
        _measure(engine, options.turns, times)
    medians = {name: round(statistics.median(each), 3) for name, each in times.items()}
    figures = {name: {"dispatch_s": medians[name], "runs": each} for name, each in times.items()}
    print(json.dumps({"by_launcher": figures}) if options.json else _table(figures))
    return 0 if max(medians.values()) - medians["local"] <= MOST_MORE_S else 1


def _measure(engine: str, turns: int, times: dict[str, list[float]]) -> None:
    with tempfile.TemporaryDirectory() as folder, for_this_process(hosts=2, ranks=1, engine=engine) as laboratory:
        here, there = Path(folder) / "here", Path(folder) / "there"
        here.mkdir()
        there.mkdir()
        with (
            closing(GangSession(None, here, ranks=2)) as local,
            closing(GangSession(laboratory, there, ranks=1)) as gang,
        ):
            local.ready()
            gang.ready()
            for turn in range(turns + 1):
                taken = {"local": _dispatch_s(local, _task(1)), engine: _dispatch_s(gang, _task(2))}
                # The first of each imports what the later ones have.
                for name in taken if turn else ():
                    times[name].append(taken[name])


def _task(nodes: int) -> TrialTask:
    payload: dict[str, Any] = tiny_task({"kind": "ddp"}, parity_steps=2).model_dump(mode="json")
    cluster = {**payload["cluster"], "nodes": nodes, "gpus_per_node": 2 // nodes, "memory_gib": 1}
    return TrialTask.model_validate({**payload, "cluster": cluster})


def _dispatch_s(session: GangSession, task: TrialTask) -> float:
    answer = session.run(task)
    assert answer["kind"] == "Measurement", answer
    return round(float(answer["result"]["startup_s"]) + float(answer["result"]["teardown_s"]), 3)


def _table(results: dict[str, Any]) -> str:
    return "\n".join(f"{name:6} {item['dispatch_s']:.2f} s" for name, item in results.items())


if __name__ == "__main__":
    sys.exit(main())
