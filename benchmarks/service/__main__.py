"""Measure the service: `python -m benchmarks.service --workers 200 --studies 20 --replicas 2 --postgres --json`.

For each number of stored trials: simulated workers finish new studies through real service processes, while a reader
asks for best configurations; then the reader asks alone. Driver, replicas and database share this machine, so the
figures are lower bounds.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from benchmarks.service import figures, load, stored
from shardtune.db.session import Database, upgrade
from tests.support.service import run_history, statement_counts
from tests.support.service.postgres_server import PostgresServer
from tests.support.service.replica import Replica

_SETTINGS: dict[str, Any] = {"lease_s": 60, "heartbeat_s": 2, "sweep_s": 2}
_TEMPLATE = "template"
_TEMPLATE_TRIALS = 50
_READS_AT_REST = 300


def main() -> int:
    """Measure; exit code 1 when anything was lost or doubled."""
    options = _options()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardtune-bench-")))
        server = stack.enter_context(_server(options)) if options.postgres else None
        url = server.url.format(name="postgres") if server else f"sqlite:///{folder}/shardtune.sqlite3"
        upgrade(url)
        replicas = [
            stack.enter_context(Replica(url, folder / f"replica-{index}.log", is_cold=True, **_SETTINGS))
            for index in range(options.replicas)
        ]
        for replica in replicas:
            replica.wait_until_ready()
        database = Database(url)
        stack.callback(database.close)
        load.cancel_left(replicas[0].url)
        _make_template([replica.url for replica in replicas])
        # Of one process that knows what it did last, and of two that take turns and have to read what the other did.
        counted = {f"{many} processes": statement_counts.count(url, many) for many in (1, 2)}
        rounds = [_round(options, database, server, replicas, count) for count in options.stored]
    answer = {"machine": figures.machine(), "options": vars(options), "statements": counted, "rounds": rounds}
    print(json.dumps(answer, default=str) if options.json else json.dumps(answer, indent=1, default=str))
    return 1 if any(single_round.get("faults") for single_round in rounds) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--trials", type=int, default=12, help="trials per study")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--run-s", type=float, default=0.2, help="how long a simulated run takes")
    parser.add_argument("--stored", type=int, nargs="*", default=[10**3, 10**5, 10**6], help="trials stored before")
    parser.add_argument("--postgres", action="store_true", help="Postgres (fsync on) instead of SQLite")
    parser.add_argument("--keep", type=Path, help="keep the Postgres in this folder, and use what is there")
    parser.add_argument("--fill-only", action="store_true", help="store, and measure another time (with --keep)")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _server(options: argparse.Namespace) -> PostgresServer:
    return PostgresServer(fsync=True, max_connections=200, keep=options.keep)


def _make_template(urls: Sequence[str]) -> None:
    """The finished study that is copied."""
    if not httpx.get(f"{urls[0]}/v1/studies/{_TEMPLATE}", trust_env=False).is_success:
        load.finish(urls, load.Plan(workers=4, studies=1, trials=_TEMPLATE_TRIALS, run_s=0.02, study_id=_TEMPLATE))


def _round(
    options: argparse.Namespace,
    database: Database,
    server: PostgresServer | None,
    replicas: Sequence[Replica],
    count: int,
) -> dict[str, Any]:
    urls = [replica.url for replica in replicas]
    _say(f"filling up to {count} trials")
    started_s = time.monotonic()
    rows = stored.fill(database, _TEMPLATE, count)
    filled: dict[str, Any] = {"stored_trials": rows, "fill_s": round(time.monotonic() - started_s, 1)}
    if options.fill_only:
        return filled
    _say(f"filled in {filled['fill_s']} s; {options.workers} workers on {options.studies} studies")
    with httpx.Client(base_url=urls[0], timeout=60, trust_env=False) as http:
        reads = stored.reads(database, http, _TEMPLATE)
        plan = load.Plan(options.workers, options.studies, options.trials, options.run_s, reads=tuple(reads))
        before_s = _processor_s(server, replicas)
        done = load.finish(urls, plan)
        after_s = _processor_s(server, replicas)
        at_rest = load.read_at_rest(http, reads, _READS_AT_REST)
    trials, runs = options.studies * options.trials, len(done.seen.seconds["report"])
    used_s = {part: after_s[part] - before_s[part] for part in before_s}
    return filled | {
        "elapsed_s": round(done.elapsed_s, 1),
        "trials_per_s": round(trials / done.elapsed_s, 2),
        "runs_per_s": round(runs / done.elapsed_s, 2),
        # Of another release a trial may take fewer runs or more: what a run costs compares like with like.
        "runs_per_trial": round(runs / trials, 2),
        "processor_s": {part: round(seconds, 1) for part, seconds in used_s.items()},
        "processor_ms_per_run": {part: round(1000 * seconds / runs, 1) for part, seconds in used_s.items()},
        "answers_ms": {kind: figures.quantiles(values) for kind, values in sorted(done.seen.seconds.items())},
        "answers_at_rest_ms": {kind: figures.quantiles(values) for kind, values in at_rest.items()},
        "statuses": dict(sorted(done.seen.statuses.items())),
        "not_answered": done.seen.not_answered,
        "replica_memory_mib": [round(replica.memory_mib()) for replica in replicas],
        "faults": run_history.faults(database, done.seen.applied, done.studies),
    }


def _processor_s(server: PostgresServer | None, replicas: Sequence[Replica]) -> dict[str, float]:
    """Processor time so far, by who used it."""
    own = {"driver": time.process_time(), "replicas": sum(replica.cpu_s() for replica in replicas)}
    return own | ({"postgres": server.cpu_s()} if server is not None else {})


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
