"""Harm a service at random for a while, then look whether anything was lost: `python -m benchmarks.service.soak --minutes 10`.

Service replicas and workers die by SIGKILL, Postgres by an immediate shutdown; all come back. Replicas freeze for longer
than a lease and go on as if nothing had been, the database hangs, its disk fills up, its fsync takes long, and single
statements fail, hang or lose their answers. Studies are created as long as time is left; at the end every study must
finish, and the history must be right. The seed is printed.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.service.soak.harm import LEASE_S, Site, harm_for
from benchmarks.service.soak.processes import FaultyReplica, SlowFsync, WorkerProcess
from benchmarks.service.soak.small_disk import SmallDisk
from benchmarks.service.soak.studies import Studies
from shardtune.db.session import Database, upgrade
from tests.support.service import run_history
from tests.support.service.postgres_server import PostgresServer

_SETTINGS: dict[str, Any] = {"lease_s": LEASE_S, "heartbeat_s": 0.5, "sweep_s": 0.5, "poll_s": 0.2}
_FINISH_S = 180.0
_DISK_MIB = 2048


def main() -> int:
    """Soak; exit code 1 when anything was lost."""
    options = _parser().parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**31)
    print(f"seed {seed}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardtune-soak-")))
        # Postgres runs as another user, who loads the library.
        folder.chmod(0o755)
        disk = None if options.no_disk else stack.enter_context(SmallDisk(_DISK_MIB))
        slow_fsync = SlowFsync(folder)
        server = None
        if not options.sqlite:
            kept = None if disk is None else disk.folder / "postgres"
            server = stack.enter_context(PostgresServer(fsync=True, keep=kept, environment=slow_fsync.environment))
        result = _soak(options, seed, folder, disk, slow_fsync, server)
    print(json.dumps({"seed": seed, "minutes": options.minutes, **result}, indent=1))
    return 1 if result["faults"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--sqlite", action="store_true", help="One replica on a SQLite file instead of Postgres.")
    parser.add_argument("--no-disk", action="store_true", help="Leave out the full disk, which needs root.")
    parser.add_argument("--statement-faults", type=float, default=0.002, help="Share of statements that meet a fault.")
    return parser


def _soak(
    options: argparse.Namespace,
    seed: int,
    folder: Path,
    disk: SmallDisk | None,
    slow_fsync: SlowFsync,
    server: PostgresServer | None,
) -> dict[str, Any]:
    """Do harm, let everything finish, check. Returns what was done, and every fault found."""
    sqlite = (disk.folder if disk else folder) / "shardtune.sqlite3"
    url = f"sqlite:///{sqlite}" if server is None else server.url.format(name="postgres")
    upgrade(url)
    record, chooser = folder / "statements", random.Random(seed)
    services = [
        FaultyReplica(
            url, folder / f"service-{index}.log", seed + index, options.statement_faults, record,
            slow_fsync.environment if server is None else {}, **_SETTINGS,
        )
        for index in range(1 if server is None else options.replicas)
    ]  # fmt: skip
    addresses = [service.url for service in services]
    workers = [
        WorkerProcess(f"soak-{index}", addresses, folder / f"worker-{index}.log") for index in range(options.workers)
    ]
    studies = Studies(addresses, chooser)
    site = Site(list(services), workers, server, disk, slow_fsync, chooser)
    try:
        _start(site)
        done = harm_for(site, options.minutes * 60, studies.create)
        unfinished = studies.finish(_FINISH_S, site.recover)
        database = Database(url)
        try:
            faults = [f"{study} is still {state}" for study, state in unfinished.items()] + run_history.faults(database)
        finally:
            database.close()
        statements = Counter(record.read_text().splitlines() if record.exists() else [])
        return {
            "faults": faults + _tracebacks(folder),
            "done_to_them": dict(done),
            "statements": dict(statements),
            "studies": dict(Counter(studies.states.values())),
        }
    finally:
        for worker in workers:
            if worker.process is not None:
                worker.kill()
        for service in services:
            service.kill(signal.SIGTERM)


def _start(site: Site) -> None:
    for service in site.services:
        service.start()
    for service in site.services:
        _wait_until_ready(service)
    for worker in site.workers:
        worker.start()


def _wait_until_ready(service: Any) -> None:
    """A start may meet a fault in its own statements and end with a message; the next one meets others."""
    for _ in range(5):
        try:
            service.wait_until_ready()
            return
        except RuntimeError:
            service.start()
            time.sleep(1)
    service.wait_until_ready()


def _tracebacks(folder: Path) -> list[str]:
    """Workers' crashes; a service's log may have errors, which the database's faults explain."""
    logs = (path for path in sorted(folder.glob("worker-*.log")) if "Traceback" in path.read_text())
    return [f"{path.name}: {path.read_text()[-500:]}" for path in logs]


if __name__ == "__main__":
    sys.exit(main())
