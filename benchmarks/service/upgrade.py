"""Upgrade a service under load, and go back: `python -m benchmarks.service.upgrade --minutes 5`.

Two replicas of a former release and their workers serve studies on one Postgres. The database, each replica and each
worker is upgraded in turn to the working tree's release, and goes back in turn, while studies are created and read.
Every request must succeed or ask for a repetition, every study must end, and the history must be right.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.service.figures import machine
from benchmarks.service.releases import Release, checkout, former_release, working_tree
from benchmarks.service.upgrade_load import Answers, Platform, WorkerProcess
from shardtune.db.session import Database
from tests.support.service import run_history
from tests.support.service.postgres_server import PostgresServer
from tests.support.service.replica import Replica

_SETTINGS: dict[str, Any] = {"lease_s": 10, "heartbeat_s": 0.5, "sweep_s": 0.5, "poll_s": 0.2}
_FINISH_S = 240.0
_START_S = 180.0
"""Seconds within which a service must start: the first start of a checkout compiles all of it."""
_MOST_OPEN = 4


@dataclass(frozen=True)
class Plan:
    """Size of the load."""

    workers: int
    trials: int
    """Trials of each study."""
    stage_s: float
    """Seconds of load after each step of the upgrade."""


@dataclass
class Outcome:
    """Record of an upgrade."""

    former: str
    stages: dict[str, list[int]] = field(default_factory=dict)
    """Statuses of the replicas' `/readyz` at the end of each stage."""
    studies: Counter[str] = field(default_factory=Counter)
    """Number of studies by final state."""
    answers: Answers = field(default_factory=Answers)
    faults: list[str] = field(default_factory=list)


class Deployment:
    """Replicas and workers on one database, each of one of two releases."""

    def __init__(self, url: str, folder: Path, former: Release, plan: Plan) -> None:
        self._folder, self._plan = folder, plan
        self.outcome = Outcome(former.name)
        self.replicas = [
            Replica(url, folder / f"service-{index}.log", environment=former.environment, is_cold=True, **_SETTINGS)
            for index in range(2)
        ]
        self.urls = [replica.url for replica in self.replicas]
        self.workers: list[WorkerProcess] = []
        self.platform = Platform(self.urls, plan.trials, _MOST_OPEN)

    def start(self, release: Release) -> None:
        """Start everything; load begins with the first worker."""
        for replica in self.replicas:
            replica.start()
        for replica in self.replicas:
            replica.wait_until_ready(_START_S)
        self.workers = [self._worker(index, release) for index in range(self._plan.workers)]
        _until(self._has_workers, "a worker registered")
        self.platform.start()
        self.end_stage("former release")

    def replace_replica(self, index: int, release: Release) -> None:
        """Stop a replica as a deployment does, and start it at the same address with another release."""
        replica = self.replicas[index]
        replica.kill(signal.SIGTERM)
        replica.use_environment(release.environment)
        replica.start()
        replica.wait_until_ready(_START_S)

    def replace_worker(self, index: int, release: Release) -> None:
        """Stop a worker and start it under the same name with another release."""
        fault = self.workers[index].stop(self.outcome.answers)
        self.outcome.faults += [fault] if fault else []
        self.workers[index] = self._worker(index, release)

    def end_stage(self, name: str) -> None:
        """Let load go on for a while, then record the stage."""
        time.sleep(self._plan.stage_s)
        self.outcome.stages[name] = [_get(f"{url}/readyz").status_code for url in self.urls]

    def finish(self) -> None:
        """Let all studies end, stop the workers and count."""
        self.platform.finish()
        _until(lambda: not self.platform.open_studies(), "every study ended")
        faults = [worker.stop(self.outcome.answers) for worker in self.workers]
        self.workers = []
        self.outcome.faults += [fault for fault in faults if fault]
        self.outcome.answers.statuses.update(self.platform.answers.statuses)
        self.outcome.answers.not_answered += self.platform.answers.not_answered
        self.outcome.faults += self.platform.errors
        errors = self.outcome.answers.errors()
        self.outcome.faults += [f"{count} answers of {kind}" for kind, count in errors.items()]

    def close(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.stop(Answers())
        for replica in self.replicas:
            replica.close()

    def _worker(self, index: int, release: Release) -> WorkerProcess:
        return WorkerProcess(f"upgrade-{index}", release, self.urls, self._folder)

    def _has_workers(self) -> bool:
        answer = _get(f"{self.urls[0]}/v1/workers")
        return bool(answer.is_success and answer.json()["workers"])


def run(url: str, folder: Path, former: Release, newer: Release, plan: Plan) -> Outcome:
    """Upgrade and go back under load; the outcome's faults are empty if nobody noticed more than a repetition."""
    former.upgrade(url)
    deployment = Deployment(url, folder, former, plan)
    outcome = deployment.outcome
    try:
        deployment.start(former)
        newer.upgrade(url)
        deployment.end_stage("database upgraded")
        _replace(deployment, newer)
        if former.can_use_newer_schema:
            # Replicas first: workers of the newer release must be able to talk to the former service.
            _replace(deployment, former)
        deployment.finish()
        outcome.faults += _history(url, outcome)
        return outcome
    finally:
        deployment.close()


def _replace(deployment: Deployment, release: Release) -> None:
    """Replace replicas and every second worker one after the other, then the remaining workers."""
    for index in range(len(deployment.replicas)):
        deployment.replace_replica(index, release)
        deployment.end_stage(f"replica {index + 1}: {release.name}")
    for index in [*range(0, len(deployment.workers), 2), *range(1, len(deployment.workers), 2)]:
        deployment.replace_worker(index, release)
    deployment.end_stage(f"workers: {release.name}")


def _history(url: str, outcome: Outcome) -> list[str]:
    database = Database(url)
    try:
        outcome.studies = run_history.states(database)
        failed = [f"{count} studies are {state}" for state, count in outcome.studies.items() if state != "complete"]
        return run_history.faults(database, outcome.answers.applied) + failed
    finally:
        database.close()


def _get(url: str) -> httpx.Response:
    return httpx.get(url, timeout=_START_S, trust_env=False)


def _until(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + _FINISH_S
    while not condition():
        if time.monotonic() > until_s:
            raise RuntimeError(f"not reached within {_FINISH_S:g} s: {what}")
        time.sleep(0.2)


def main() -> int:
    """Upgrade and go back; exit code 1 if anything was lost or anybody saw an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--older", help="Commit of the former release. Default: that before the newest migration.")
    parser.add_argument("--minutes", type=float, default=5, help="Minutes of load, divided among the stages.")
    parser.add_argument("--workers", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shardtune-upgrade-") as name, PostgresServer() as server:
        folder = Path(name)
        former = checkout(options.older or former_release(), folder)
        stages = 8 if former.can_use_newer_schema else 5
        plan = Plan(options.workers, trials=8, stage_s=options.minutes * 60 / stages)
        outcome = run(server.url.format(name="postgres"), folder, former, working_tree(), plan)
    counts = {"statuses": dict(sorted(outcome.answers.statuses.items())), "not_answered": outcome.answers.not_answered}
    shown = {
        "former": outcome.former,
        "stages": outcome.stages,
        "studies": dict(outcome.studies),
        "faults": outcome.faults,
    }
    print(json.dumps({"machine": machine()} | shown | counts, indent=1))
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
