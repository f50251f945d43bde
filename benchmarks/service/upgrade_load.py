"""Load of `benchmarks.service.upgrade`: a platform that creates studies and reads, and worker processes of a release."""

import json
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.service.releases import Release
from shardtune.service.cli.parent_death import dies_with_parent
from tests.support.service.simulated_worker import CLUSTER, SPEC

_WORKER_SCRIPT = Path(__file__).with_name("release_worker.py")
_READS = ("/v1/studies?limit=20", "/v1/workers", "/v1/recommendations?limit=20", "/studies")
_RESPONSE_S = 5.0
_PAUSE_S = 0.1
_RETRY = 503
"""Status that asks the client to try again."""
_END_S = 60.0


@dataclass
class Answers:
    """Counts of the answers to requests."""

    statuses: Counter[str] = field(default_factory=Counter)
    """Number of answers by kind of request and status."""
    not_answered: int = 0
    """Requests whose connection ended without an answer; each was repeated."""
    applied: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Number of answers `applied: true` by run and attempt."""

    def errors(self) -> dict[str, int]:
        """Answers that are neither a success nor a request to try again."""
        # A lease or a session that has ended is told by 409; a worker that stops gives both up.
        fine = {"heartbeat 409", "report 409", "lease 409", "held_lease 409"}
        return {
            kind: count
            for kind, count in self.statuses.items()
            if kind not in fine and not (200 <= (status := int(kind.rsplit(" ", 1)[1])) < 300 or status == _RETRY)
        }


class Platform(threading.Thread):
    """Client that creates studies and reads at all replicas in turn, and tries again where one does not answer."""

    def __init__(self, urls: Sequence[str], trials: int, most_open: int) -> None:
        super().__init__(name="platform", daemon=True)
        self._urls, self._trials, self._most_open = urls, trials, most_open
        self._turn = 0
        self._http = httpx.Client(timeout=_RESPONSE_S, trust_env=False)
        self._is_over = threading.Event()
        self.answers = Answers()
        self.created: list[str] = []
        """Ids of the created studies."""
        self.errors: list[str] = []
        """Bodies of rejected requests."""

    def run(self) -> None:
        """Create and read until `finish`."""
        while not self._is_over.wait(_PAUSE_S):
            if len(self.open_studies()) < self._most_open:
                self._create()
            for path in _READS:
                self._call("GET", path)

    def finish(self) -> None:
        """Create nothing more."""
        self._is_over.set()
        self.join()

    def open_studies(self) -> list[str]:
        """Ids of the studies that have not ended."""
        answer = self._call("GET", "/v1/studies?state=running&limit=500")
        return [study["study_id"] for study in answer.json()["studies"]] if answer is not None else self.created

    def _create(self) -> None:
        spec = SPEC | {
            "cluster": CLUSTER.model_dump(),
            "budget": {"max_trials": self._trials},
            "seed": len(self.created),
        }
        answer = self._call("POST", "/v1/studies", json=spec, headers={"idempotency-key": uuid.uuid4().hex})
        if answer is not None:
            self.created.append(answer.json()["study_id"])

    def _call(self, method: str, path: str, **request: Any) -> httpx.Response | None:
        """Ask until a replica answers; None after an answer that is an error."""
        kind = f"{method} {path.partition('?')[0]}"
        until_s = time.monotonic() + _END_S
        while time.monotonic() < until_s:
            self._turn += 1
            try:
                answer = self._http.request(method, self._urls[self._turn % len(self._urls)] + path, **request)
            except httpx.TransportError:
                self.answers.not_answered += 1
                continue
            self.answers.statuses[f"{kind} {answer.status_code}"] += 1
            if answer.status_code == _RETRY:
                time.sleep(_PAUSE_S)
                continue
            if answer.is_success:
                return answer
            self.errors.append(f"{kind} {answer.status_code}: {answer.text[:300]}")
            return None
        self.errors.append(f"{kind}: no replica answered for {_END_S:g} s")
        return None


class WorkerProcess:
    """Simulated worker of one release, in a process of its own."""

    def __init__(self, name: str, release: Release, urls: Sequence[str], folder: Path) -> None:
        self._log = folder / f"worker-{name}-{release.name.replace(' ', '-')}-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                dies_with_parent([sys.executable, str(_WORKER_SCRIPT), name, *urls]),
                env=release.environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.name = name

    def stop(self, answers: Answers) -> str | None:
        """Stop it and add what it was answered; returns a sentence if it failed."""
        self._process.terminate()
        printed, _ = self._process.communicate(timeout=_END_S)
        if self._process.returncode != 0:
            return f"worker {self.name} ended with {self._process.returncode}: {self._log.read_text()[-500:]}"
        counts = json.loads(printed)
        answers.statuses.update(counts["statuses"])
        answers.not_answered += counts["not_answered"]
        for run_id, attempt, count in counts["applied"]:
            answers.applied[run_id, attempt] += count
        return None
