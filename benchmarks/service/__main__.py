"""Measure the service: `python -m benchmarks.service --workers 200 --studies 20 --replicas 2 --postgres --json`.

For each number of stored trials: simulated workers finish new studies through real service processes, while a reader
asks for best configurations. Driver, replicas and database share this machine, so the figures are lower bounds.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from benchmarks.service import history, stored
from benchmarks.service.replicas import Replica
from benchmarks.service.workers import Seen, SimulatedWorker, client
from db.session import Database, upgrade
from tests.postgres_server import PostgresServer
from tests.simulated_worker import CLUSTER, SPEC

_SETTINGS = {"lease_s": 60, "heartbeat_s": 2, "sweep_s": 2}
_READ_PAUSE_S = 0.02
_GIVE_UP_S = 420.0
_TEMPLATE_TRIALS = 50


def main() -> int:
    """Measure; exit code 1 when anything was lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--trials", type=int, default=20, help="trials per study")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--run-s", type=float, default=1.0, help="how long a simulated run takes")
    parser.add_argument("--stored", type=int, nargs="*", default=[10**3, 10**5, 10**6], help="trials stored before")
    parser.add_argument("--postgres", action="store_true", help="Postgres (fsync on) instead of SQLite")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardtune-bench-")))
        url = f"sqlite:///{folder}/shardtune.sqlite3"
        if options.postgres:
            server = stack.enter_context(PostgresServer(fsync=True, max_connections=200))
            url = server.url.format(name="postgres")
        upgrade(url)
        replicas = [
            stack.enter_context(Replica(url, folder / f"replica-{index}.log", **_SETTINGS))
            for index in range(options.replicas)
        ]
        for replica in replicas:
            replica.wait_until_ready()
        database = Database(url)
        stack.callback(database.close)
        urls = [replica.url for replica in replicas]
        template = asyncio.run(_finish(options, urls, 1, 4, _TEMPLATE_TRIALS, reads=[])).studies[0]
        rounds = [_round(options, database, replicas, template, count) for count in options.stored]
    answer = {"machine": _machine(), "options": vars(options), "rounds": rounds}
    print(json.dumps(answer) if options.json else json.dumps(answer, indent=1))
    return 1 if any(one["faults"] for one in rounds) else 0


def _round(
    options: argparse.Namespace, database: Database, replicas: Sequence[Replica], template: str, count: int
) -> dict[str, Any]:
    urls = [replica.url for replica in replicas]
    _say(f"filling up to {count} trials")
    started_s = time.monotonic()
    rows = stored.fill(database, template, count)
    filled_s = time.monotonic() - started_s
    _say(f"filled in {filled_s:.0f} s; {options.workers} workers on {options.studies} studies")
    done = asyncio.run(
        _finish(options, urls, options.studies, options.workers, options.trials, stored.read_paths(urls[0], template))
    )
    faults = history.faults(database, done.seen.applied, done.studies)
    trials = options.studies * options.trials
    return {
        "stored_trials": rows,
        "fill_s": round(filled_s, 1),
        "elapsed_s": round(done.elapsed_s, 1),
        "trials_per_s": round(trials / done.elapsed_s, 2),
        "runs_per_s": round(len(done.seen.seconds["report"]) / done.elapsed_s, 2),
        "answers_ms": {kind: _quantiles(values) for kind, values in sorted(done.seen.seconds.items())},
        "statuses": dict(sorted(done.seen.statuses.items())),
        "not_answered": done.seen.not_answered,
        "replica_memory_mib": [round(replica.memory_mib()) for replica in replicas],
        "faults": faults,
    }


class _Done:
    def __init__(self) -> None:
        self.studies: list[str] = []
        self.seen = Seen()
        self.elapsed_s = 0.0


async def _finish(
    options: argparse.Namespace, urls: list[str], studies: int, workers: int, trials: int, reads: list[tuple[str, str]]
) -> _Done:
    """Create studies and work until all have ended."""
    done = _Done()
    over = False
    async with client() as http:
        alive = [SimulatedWorker(f"bench-{index}", urls, done.seen, lambda: options.run_s) for index in range(workers)]
        # Registered before the studies, which need a live worker.
        tasks = [asyncio.create_task(worker.work(http, lambda: over)) for worker in alive]
        while done.seen.statuses["register 200"] < workers:
            await asyncio.sleep(0.1)
        started_s = time.monotonic()
        spec = SPEC | {"cluster": CLUSTER.model_dump(), "budget": {"max_trials": trials}}
        for index in range(studies):
            answer = await http.post(f"{urls[index % len(urls)]}/v1/studies", json=spec | {"seed": index})
            answer.raise_for_status()
            done.studies.append(answer.json()["study_id"])
        reader = asyncio.create_task(_read(http, reads, done.seen, lambda: over))
        await _all_ended(http, urls, done.studies, started_s)
        done.elapsed_s = time.monotonic() - started_s
        over = True
        await asyncio.gather(reader, *tasks)
    return done


async def _all_ended(http: httpx.AsyncClient, urls: list[str], studies: list[str], started_s: float) -> None:
    left = list(studies)
    while left:
        if time.monotonic() - started_s > _GIVE_UP_S:
            raise RuntimeError(f"{len(left)} studies were not finished after {_GIVE_UP_S:g} s")
        await asyncio.sleep(0.5)
        answer = await http.get(f"{urls[0]}/v1/studies/{left[0]}")
        if answer.is_success and answer.json()["state"] not in ("running", "paused"):
            left.pop(0)


async def _read(http: httpx.AsyncClient, reads: list[tuple[str, str]], seen: Seen, stopped: Any) -> None:
    while reads and not stopped():
        for kind, url in reads:
            started_s = time.perf_counter()
            answer = await http.get(url)
            seen.seconds.setdefault(kind, []).append(time.perf_counter() - started_s)
            seen.statuses[f"{kind} {answer.status_code}"] += 1
            await asyncio.sleep(_READ_PAUSE_S)


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {
        "count": len(ordered),
        "p50": round(statistics.median(ordered) * 1000, 2),
        "p99": round(p99 * 1000, 2),
        "max": round(ordered[-1] * 1000, 2),
    }


def _machine() -> dict[str, Any]:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpus": os.cpu_count(),
        "cpu": names[0].split(": ", 1)[1] if names else "unknown",
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


if __name__ == "__main__":
    sys.exit(main())
