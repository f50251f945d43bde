"""Honest load beside hostile clients: `python -m benchmarks.service.hostile --postgres --replicas 2 --json`.

Two projects with keys of their own. The honest one's simulated workers finish studies, alone and beside clients of the
other project and of none (bad keys with large bodies, bodies and headers that never end, forms, webhooks to a receiver
that never answers, a thousand worker names, prying), and beside one more replica that is frozen in the middle of it.
Alone and beside take turns; all requests of a phase count together.
"""

import argparse
import json
import multiprocessing
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.service import attackers, figures, load
from benchmarks.service.own_trace import own_trace
from benchmarks.service.silent_receiver import silent_receiver
from benchmarks.service.targets import Harm, Targets
from shardtune.api_schemas.access.keys import KeySpec, Scope
from shardtune.db.session import Database, upgrade
from shardtune.service.access import manage_keys
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings
from tests.support.service import run_history
from tests.support.service.postgres_server import PostgresServer
from tests.support.service.replica import Replica

_CANARY = "kestrel"
_SETTINGS: dict[str, Any] = {
    "lease_s": 60,
    "heartbeat_s": 0.5,
    "sweep_s": 2,
    "webhook_allow_private": True,
    "request_receive_s": 5,
}
_SECRET_KEY = "of-this-benchmark-and-of-nothing-else"
_FREEZE_AFTER_S = 5.0
_END_S = 60.0


@dataclass
class Phase:
    """Response times of the honest project, alone or beside the others."""

    heartbeat_s: list[float] = field(default_factory=list)
    lease_s: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0
    not_answered: int = 0
    faults: list[str] = field(default_factory=list)
    doubled: int = 0

    def add(self, database: Database, done: load.Done) -> None:
        """One round of it."""
        self.heartbeat_s += done.seen.seconds.get("heartbeat", [])
        self.lease_s += done.seen.seconds.get("lease", [])
        self.elapsed_s += done.elapsed_s
        self.not_answered += done.seen.not_answered
        self.doubled += sum(count - 1 for count in done.seen.applied.values())
        self.faults += run_history.faults(database, done.seen.applied, done.studies)

    def answer(self) -> dict[str, Any]:
        """Figures for the output."""
        heartbeat, lease = figures.quantiles(self.heartbeat_s), figures.quantiles(self.lease_s)
        return {
            "heartbeat_p99_ms": heartbeat["p99"],
            "lease_p99_ms": lease["p99"],
            "lost": len(self.faults),
            "doubled": self.doubled,
            "heartbeat_ms": heartbeat,
            "lease_ms": lease,
            "elapsed_s": round(self.elapsed_s, 1),
            "not_answered": self.not_answered,
            "faults": self.faults[:20],
        }


def main() -> int:
    """Measure; exit code 1 when anything leaked, was lost or doubled."""
    options = _options()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardtune-hostile-")))
        url = _database_url(options, folder, stack)
        upgrade(url)
        honest_key, hostile_key = _keys(url)
        settings = _SETTINGS | {"secret_key": _SECRET_KEY}
        replicas = [
            stack.enter_context(Replica(url, folder / f"replica-{index}.log", is_cold=True, **settings))
            for index in range(options.replicas + 1)
        ]
        for replica in replicas:
            replica.wait_until_ready()
        database = Database(url)
        stack.callback(database.close)
        tarpit = stack.enter_context(silent_receiver())
        urls = [replica.url for replica in replicas[:-1]]
        trace = own_trace(urls[0], hostile_key) if "slow_reader" in options.kinds else ""
        targets = Targets(
            urls, replicas[-1].url, 0.0, hostile_key, _CANARY, trace, [], tarpit, options.pause_s, options.kinds
        )
        calm_mib = max(replica.memory_mib() for replica in replicas[:-1])
        alone, beside, harm = _take_turns(options, database, replicas, targets, honest_key)
        peak_mib = max(replica.memory_mib(peak=True) for replica in replicas)
    answer = {
        "machine": figures.machine(),
        "options": vars(options),
        "honest": beside.answer(),
        "alone": alone.answer(),
        "leaks": len(harm.leaks),
        "leaked": harm.leaks[:20],
        "replica_mib": {"before": round(calm_mib), "peak": round(peak_mib)},
        "hostile": dict(sorted(harm.statuses.items())),
    }
    print(json.dumps(answer, default=str) if options.json else json.dumps(answer, indent=1, default=str))
    return 1 if harm.leaks or alone.faults or beside.faults or alone.doubled or beside.doubled else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", action="store_true", help="Postgres (fsync on) instead of SQLite")
    parser.add_argument("--replicas", type=int, default=2, help="that serve; one more is frozen")
    parser.add_argument("--workers", type=int, default=20, help="honest ones")
    parser.add_argument("--studies", type=int, default=4, help="honest ones, in each round")
    parser.add_argument("--trials", type=int, default=12, help="per study")
    parser.add_argument("--run-s", type=float, default=2.0, help="how long a simulated run takes")
    parser.add_argument("--clients", type=int, default=50, help="hostile ones")
    parser.add_argument("--kinds", nargs="*", choices=list(attackers.KINDS), default=list(attackers.KINDS))
    parser.add_argument("--pause-s", type=float, default=0.5, help="between two requests of a hostile client")
    parser.add_argument("--rounds", type=int, default=2, help="of alone and beside")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _database_url(options: argparse.Namespace, folder: Path, stack: ExitStack) -> str:
    if not options.postgres:
        return f"sqlite:///{folder}/shardtune.sqlite3"
    server = stack.enter_context(PostgresServer(fsync=True, max_connections=200))
    return server.url.format(name="postgres")


def _keys(url: str) -> tuple[str, str]:
    """Keys of an honest platform, and of the administrator of another project."""
    context = Context(Database(url), Settings(database_url=url))
    try:
        created = [
            manage_keys.create(context, KeySpec(name=name, scopes=(Scope.ADMIN,), project_id=project))
            for name, project in ((_CANARY, "honest"), ("hostile", "hostile"))
        ]
    finally:
        context.db.close()
    honest, hostile = (item.secret for item in created)
    assert honest is not None and hostile is not None, "only repetitions have none"
    return honest.get_secret_value(), hostile.get_secret_value()


def _take_turns(
    options: argparse.Namespace,
    database: Database,
    replicas: list[Replica],
    targets: Targets,
    honest_key: str,
) -> tuple[Phase, Phase, Harm]:
    urls = [replica.url for replica in replicas[:-1]]
    alone, beside, harm = Phase(), Phase(), Harm()
    for number in range(options.rounds):
        plan = load.Plan(
            options.workers, options.studies, options.trials, options.run_s, key=honest_key, name=f"{_CANARY}-{number}"
        )
        _say(f"round {number + 1}: alone")
        done = load.finish(urls, plan)
        alone.add(database, done)
        targets.foreign = [f"/v1/studies/{study_id}" for study_id in done.studies]
        _say(f"round {number + 1}: beside {options.clients} hostile clients")
        beside.add(database, _beside(urls, plan, replicas[-1], targets, options.clients, harm))
    return alone, beside, harm


def _beside(
    urls: list[str],
    plan: load.Plan,
    victim: Replica,
    targets: Targets,
    clients: int,
    harm: Harm,
) -> load.Done:
    """The honest load, while the others send, and one replica stops in the middle of whatever it does."""
    processes = multiprocessing.get_context("spawn")
    over, harms = processes.Event(), processes.Queue()
    targets.victim, targets.victim_until_s = victim.url, time.monotonic() + _FREEZE_AFTER_S
    hostile = processes.Process(target=attackers.attack_apart, args=(targets, clients, over, harms), daemon=True)
    freezer = threading.Timer(_FREEZE_AFTER_S, victim.send, [signal.SIGSTOP])
    hostile.start()
    freezer.start()
    try:
        return load.finish(urls, plan)
    finally:
        over.set()
        stored = harms.get(timeout=_END_S)
        hostile.join(_END_S)
        freezer.join()
        victim.send(signal.SIGCONT)
        harm.statuses += stored.statuses
        harm.leaks += stored.leaks


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
