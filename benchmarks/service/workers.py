"""Simulated workers: the real protocol over HTTP, no ranks. Each life ends when told, and repeats what was not answered."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from shardtune.api_schemas.machines.hardware import Inventory
from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.leases import TASK_KINDS
from tests.support.service.simulated_worker import CLUSTER, FINGERPRINT, MODEL_SUMMARY, measurement, restarted, speed_of

_RETRY_S = 0.1
INVENTORY = Inventory(cluster=CLUSTER, fingerprint=FINGERPRINT, task_kinds=TASK_KINDS).model_dump(mode="json")
"""Offer of every worker here."""


@dataclass
class Tally:
    """Response times and results that the workers count."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Answer times by kind of request."""
    statuses: Counter[str] = field(default_factory=Counter)
    applied: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Number of responses `applied: true` to reports of (run, attempt)."""
    not_answered: int = 0
    """Requests without an answer, repeated."""


class SimulatedWorker:
    """One life of one worker."""

    def __init__(self, name: str, urls: Sequence[str], tally: Tally, run_s: Callable[[], float]) -> None:
        self.name, self._urls, self._seen, self._run_s = name, list(urls), tally, run_s
        self._session: str | None = None
        self._turn = random.randrange(len(self._urls))

    async def work(self, http: httpx.AsyncClient, stopped: Callable[[], bool], wait_s: float = 10.0) -> None:
        """Register, then lease and report until `stopped`."""
        await self._register(http, stopped)
        is_idle = False
        while not stopped():
            # First without waiting, which measures what a claim costs; then held open until there is work.
            kind, held_s = ("held_lease", wait_s) if is_idle else ("lease", 0.0)
            answer = await self._post(http, kind, "/v1/leases", {"wait_s": held_s})
            is_idle = answer is not None and answer.status_code == 204
            if answer is None:
                await asyncio.sleep(_RETRY_S)
            elif answer.status_code == 409:
                self._session = None
                await self._register(http, stopped)
            elif answer.status_code == 200:
                await self._run(http, answer.json(), stopped)

    async def _register(self, http: httpx.AsyncClient, stopped: Callable[[], bool]) -> None:
        body = {"name": self.name, "inventory": INVENTORY}
        while not stopped():
            answer = await self._post(http, "register", "/v1/workers", body)
            if answer is not None and answer.is_success:
                self._session = answer.json()["session"]
                return
            await asyncio.sleep(_RETRY_S)

    async def _run(self, http: httpx.AsyncClient, lease: dict[str, Any], stopped: Callable[[], bool]) -> None:
        path, attempt = f"/v1/runs/{lease['run_id']}", {"attempt": lease["attempt"]}
        left_s = self._run_s()
        while True:
            await asyncio.sleep(min(left_s, lease["heartbeat_s"]))
            left_s -= lease["heartbeat_s"]
            beat = await self._post(http, "heartbeat", f"{path}/heartbeat", attempt)
            if beat is not None and beat.status_code == 200 and beat.json()["action"] == "stop":
                return
            if left_s <= 0:
                break
        report = attempt | {"gpu_seconds": 2.0} | _outcome(lease["task"])
        while not stopped():
            answer = await self._post(http, "report", f"{path}/report", report)
            if answer is not None and answer.status_code < 500:
                if answer.status_code == 200 and answer.json()["applied"]:
                    self._seen.applied[lease["run_id"], lease["attempt"]] += 1
                return
            await asyncio.sleep(_RETRY_S)

    async def _post(self, http: httpx.AsyncClient, kind: str, path: str, body: dict[str, Any]) -> httpx.Response | None:
        url = self._urls[self._turn % len(self._urls)] + path
        started_s = time.perf_counter()
        try:
            body = {"protocol_version": PROTOCOL_VERSION, "session": self._session} | body
            answer = await http.post(url, json=body)
        except httpx.TransportError:
            self._seen.not_answered += 1
            self._turn += 1
            return None
        # A request that was held open says nothing about speed.
        if kind != "held_lease":
            self._seen.seconds.setdefault(kind, []).append(time.perf_counter() - started_s)
        self._seen.statuses[f"{kind} {answer.status_code}"] += 1
        return answer if answer.status_code < 500 else None


def _outcome(task: dict[str, Any]) -> dict[str, Any]:
    if task["kind"] == "model_summary":
        return {"model_summary": MODEL_SUMMARY.model_dump(mode="json")}
    if task["kind"] == "resume_check":
        return {"resume_check": restarted().model_dump(mode="json")}
    speed = speed_of(TrialConfig.model_validate(task["config"])) * random.uniform(0.99, 1.01)
    return {"measurement": measurement(speed).model_dump(mode="json")}


def client(key: str | None = None, timeout_s: float = 30) -> httpx.AsyncClient:
    """A client of services at plain HTTP: certificates, which take long to read, are not needed."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(timeout=timeout_s, limits=limits, headers=headers, trust_env=False, verify=False)
