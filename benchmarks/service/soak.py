"""Kill and freeze at random for a while, then look whether anything was lost: `python -m benchmarks.service.soak --minutes 10`.

Service replicas and workers die by SIGKILL, the database by an immediate shutdown; all come back. Replicas freeze for
longer than a lease and go on as if nothing had been, and the database hangs. Studies are created as long as time is left;
at the end every study must finish, and the history must be right. The seed is printed.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from shardtune.db.session import Database, upgrade
from shardtune.service.cli.parent_death import dies_with_parent
from tests.support.service import run_history
from tests.support.service.postgres_server import PostgresServer
from tests.support.service.replica import Replica
from tests.support.service.simulated_worker import CLUSTER, SPEC

_LEASE_S = 4.0
_SETTINGS: dict[str, Any] = {"lease_s": _LEASE_S, "heartbeat_s": 0.5, "sweep_s": 0.5, "poll_s": 0.2}
_MOST_OPEN = 4
_ANSWER_S = 3.0
"""A replica that is frozen takes connections and answers nothing."""
_FAULTS = {"kill service": 4, "kill worker": 5, "crash database": 1, "freeze service": 3, "hang database": 1}
"""Faults, with their relative frequencies."""
_FINISH_S = 180.0


@dataclass
class Soak:
    """Record of a soak."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    """Number of each fault."""
    studies: dict[str, str] = field(default_factory=dict)
    """State by study."""


class WorkerProcess:
    """A simulated worker in a process of its own, so that it can be killed."""

    def __init__(self, name: str, urls: list[str], log: Path) -> None:
        self._command = [sys.executable, "-m", "benchmarks.service.worker_process", name, *urls]
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a new life."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                dies_with_parent(self._command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """End this life without a word."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()


def main() -> int:
    """Soak; exit code 1 when anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--workers", type=int, default=8)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**31)
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="shardtune-soak-") as folder, PostgresServer() as server:
        soak, faults = run(server, Path(folder), seed, options.minutes * 60, options.replicas, options.workers)
    counts = {"done_to_them": dict(soak.faults), "studies": dict(Counter(soak.studies.values()))}
    print(json.dumps({"seed": seed, "minutes": options.minutes, "faults": faults} | counts, indent=1))
    return 1 if faults else 0


def run(
    server: PostgresServer, folder: Path, seed: int, seconds: float, replicas: int, workers: int
) -> tuple[Soak, list[str]]:
    """Do harm for so long, let everything finish, check. Returns what happened and every fault found."""
    url = server.url.format(name="postgres")
    upgrade(url)
    soak, chooser = Soak(seed), random.Random(seed)
    services = [Replica(url, folder / f"service-{index}.log", is_cold=True, **_SETTINGS) for index in range(replicas)]
    addresses = [service.url for service in services]
    lives = [WorkerProcess(f"soak-{index}", addresses, folder / f"worker-{index}.log") for index in range(workers)]
    try:
        for service in services:
            service.start()
        for service in services:
            service.wait_until_ready()
        for life in lives:
            life.start()
        _harm_for(soak, chooser, seconds, server, services, lives)
        unfinished = _finish(soak, addresses)
        database = Database(url)
        try:
            faults = [f"{study} is still {state}" for study, state in unfinished.items()] + run_history.faults(database)
        finally:
            database.close()
        return soak, faults + _tracebacks(folder)
    finally:
        for life in lives:
            if life.process is not None:
                life.kill()
        for service in services:
            service.kill(signal.SIGTERM)


def _harm_for(
    soak: Soak,
    chooser: random.Random,
    seconds: float,
    server: PostgresServer,
    services: list[Replica],
    lives: list[WorkerProcess],
) -> None:
    until_s = time.monotonic() + seconds
    frozen: dict[str, float] = {}
    while time.monotonic() < until_s:
        _create(soak, chooser, [service.url for service in services])
        time.sleep(chooser.uniform(0.5, 3.0))
        fault = chooser.choices(list(_FAULTS), weights=list(_FAULTS.values()))[0]
        soak.faults[fault] += 1
        service = chooser.choice(services)
        match fault:
            case "kill service":
                service.kill(chooser.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
                time.sleep(chooser.uniform(0, 2))
                service.start()
            case "freeze service":
                service.send(signal.SIGSTOP)
                frozen[service.url] = time.monotonic() + chooser.uniform(1.0, 3.0) * _LEASE_S
            case "kill worker":
                life = chooser.choice(lives)
                life.kill()
                life.start()
            case "crash database":
                server.crash()
                time.sleep(chooser.uniform(0, 3))
                server.start()
            case "hang database":
                server.send_signal(signal.SIGSTOP)
                time.sleep(chooser.uniform(1, 2 * _LEASE_S))
                server.send_signal(signal.SIGCONT)
        for service in services:
            if frozen.get(service.url, 0.0) < time.monotonic():
                service.send(signal.SIGCONT)
            # One that came up while the database was away has ended with a message, as it should.
            if not service.is_alive():
                service.start()
    for service in services:
        service.send(signal.SIGCONT)


def _create(soak: Soak, chooser: random.Random, urls: list[str]) -> None:
    """A new study while few are open."""
    states = _states(soak, urls)
    if states is None or sum(state == "running" for state in states.values()) >= _MOST_OPEN:
        return
    spec = SPEC | {"cluster": CLUSTER.model_dump(), "budget": {"max_trials": chooser.randint(4, 12)}}
    answer = _call(urls, "POST", "/v1/studies", spec | {"seed": chooser.randrange(1000)})
    # 422 while no worker is live.
    if answer is not None and answer.status_code == 201:
        soak.studies[answer.json()["study_id"]] = "running"


def _states(soak: Soak, urls: list[str]) -> dict[str, str] | None:
    answer = _call(urls, "GET", "/v1/studies?limit=500", None)
    if answer is None or not answer.is_success:
        return None
    body: Any = answer.json()
    rows = body if isinstance(body, list) else body["studies"]
    soak.studies |= {row["study_id"]: row["state"] for row in rows}
    return soak.studies


def _finish(soak: Soak, urls: list[str]) -> dict[str, str]:
    """Wait until every study has ended; returns those that have not."""
    until_s = time.monotonic() + _FINISH_S
    while time.monotonic() < until_s:
        _states(soak, urls)
        open_studies = {study: state for study, state in soak.studies.items() if state in ("running", "paused")}
        if not open_studies:
            return {}
        time.sleep(1)
    return open_studies


def _call(urls: list[str], method: str, path: str, body: object) -> httpx.Response | None:
    for url in urls:
        try:
            return httpx.request(method, url + path, json=body, timeout=_ANSWER_S, trust_env=False)
        except httpx.TransportError:
            continue
    return None


def _tracebacks(folder: Path) -> list[str]:
    """Workers' crashes; a service's log may have errors, which the database's crashes explain."""
    logs = (path for path in sorted(folder.glob("worker-*.log")) if "Traceback" in path.read_text())
    return [f"{path.name}: {path.read_text()[-500:]}" for path in logs]


if __name__ == "__main__":
    sys.exit(main())
