"""Simulated workers that finish new studies, and a reader beside them."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

import httpx

from benchmarks.service.workers import SimulatedWorker, Tally, client
from tests.support.service.simulated_worker import CLUSTER, SPEC

_READ_PAUSE_S = 0.1
_GIVE_UP_S = 420.0

Read = tuple[str, str]
"""Kind and path."""


@dataclass(frozen=True)
class Plan:
    """Amount of load."""

    workers: int
    studies: int
    trials: int
    """Trials of each study."""
    run_s: float
    """Seconds that a simulated run takes."""
    reads: tuple[Read, ...] = ()
    study_id: str | None = None
    key: str | None = None
    """Key of the workers and of the creator of the studies; None: the service has no keys."""
    name: str = "bench"
    """Prefix of the workers' names."""


@dataclass
class Done:
    """Finished work, and the time of each request."""

    studies: list[str] = field(default_factory=list)
    seen: Tally = field(default_factory=Tally)
    elapsed_s: float = 0.0
    """Seconds from the creation of the first study to the end of the last."""


def finish(urls: Sequence[str], plan: Plan) -> Done:
    """Create studies and work until all have ended.

    Raises:
        RuntimeError: they took longer than seven minutes.
    """
    return asyncio.run(_finish(list(urls), plan))


def read_at_rest(http: httpx.Client, reads: Sequence[Read], count: int) -> dict[str, list[float]]:
    """Seconds of so many requests of each kind, one after the other, while nothing else is asked."""
    seconds: dict[str, list[float]] = {}
    for kind, path in reads:
        for _ in range(count):
            started_s = time.perf_counter()
            http.get(path).raise_for_status()
            seconds.setdefault(kind, []).append(time.perf_counter() - started_s)
    return seconds


def cancel_left(url: str) -> None:
    """End what an interrupted measurement left running."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        open_studies = (
            http.get("/v1/studies", params={"state": "running", "limit": 500}).raise_for_status().json()["studies"]
        )
        for study in open_studies:
            http.post(f"/v1/studies/{study['study_id']}:cancel").raise_for_status()


async def _finish(urls: list[str], plan: Plan) -> Done:
    done = Done()
    over = False
    async with client(plan.key) as http, AsyncExitStack() as stack:
        names = [f"{plan.name}-{index}" for index in range(plan.workers)]
        alive = [SimulatedWorker(name, urls, done.seen, lambda: plan.run_s) for name in names]
        # A client each, as in life: httpx goes through all connections of a pool at every request.
        own = [await stack.enter_async_context(client(plan.key)) for _ in alive]
        # Registered before the studies, which need a live worker.
        tasks = [asyncio.create_task(worker.work(mine, lambda: over)) for worker, mine in zip(alive, own, strict=True)]
        while done.seen.statuses["register 200"] < plan.workers:
            await asyncio.sleep(0.1)
        started_s = time.monotonic()
        await _create(http, urls, plan, done)
        reader = asyncio.create_task(_read(http, urls[0], plan.reads, done.seen, lambda: over))
        await _all_ended(http, urls, done.studies, started_s)
        done.elapsed_s = time.monotonic() - started_s
        over = True
        await asyncio.gather(reader, *tasks)
    return done


async def _create(http: httpx.AsyncClient, urls: list[str], plan: Plan, done: Done) -> None:
    spec = SPEC | {"cluster": CLUSTER.model_dump(), "budget": {"max_trials": plan.trials}}
    for index in range(plan.studies):
        params = {"study_id": plan.study_id} if plan.study_id else {}
        url = f"{urls[index % len(urls)]}/v1/studies"
        answer = await http.post(url, json=spec | {"seed": index}, params=params)
        answer.raise_for_status()
        done.studies.append(answer.json()["study_id"])


async def _all_ended(http: httpx.AsyncClient, urls: list[str], studies: list[str], started_s: float) -> None:
    open_studies = list(studies)
    while open_studies:
        if time.monotonic() - started_s > _GIVE_UP_S:
            raise RuntimeError(f"{len(open_studies)} studies were not finished after {_GIVE_UP_S:g} s")
        # On a busy machine a kept connection may end in the moment that it is used again.
        with suppress(httpx.TransportError):
            answer = await http.get(f"{urls[0]}/v1/studies/{open_studies[0]}")
            if answer.is_success and answer.json()["state"] not in ("running", "paused"):
                open_studies.pop(0)
                continue
        await asyncio.sleep(0.25)


async def _read(
    http: httpx.AsyncClient, url: str, reads: Sequence[Read], tally: Tally, stopped: Callable[[], bool]
) -> None:
    while reads and not stopped():
        for kind, path in reads:
            started_s = time.perf_counter()
            answer = await http.get(url + path)
            tally.seconds.setdefault(kind, []).append(time.perf_counter() - started_s)
            tally.statuses[f"{kind} {answer.status_code}"] += 1
            await asyncio.sleep(_READ_PAUSE_S)
