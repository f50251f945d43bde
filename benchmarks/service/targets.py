"""Targets of the attackers of `benchmarks.service.hostile`, and the harm that they do."""

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Targets:
    """Targets of attackers."""

    urls: Sequence[str]
    victim: str
    """Another service, which stops after a while."""
    victim_until_s: float
    """Time of its stop on the monotonic clock; nothing is sent there afterwards."""
    key: str
    """An administrator's of a project of their own."""
    canary: str
    """A word in everything that the other project owns."""
    trace: str
    """Path of a raw trace of the attackers' own project."""
    foreign: Sequence[str]
    """Paths of the other project's things, without the word."""
    tarpit: str
    """A receiver that takes messages and never answers."""
    pause_s: float
    """Seconds between two requests of one client."""
    kinds: Sequence[str]
    """Clients per kind of `KINDS`."""


@dataclass
class Harm:
    """Results of an attack."""

    statuses: Counter[str] = field(default_factory=Counter)
    """Answers by kind and status; `cut` where the service closed the connection."""
    leaks: list[str] = field(default_factory=list)


async def send(
    http: httpx.AsyncClient, targets: Targets, harm: Harm, kind: str, method: str, path: str, **request: Any
) -> httpx.Response:
    """Send a request with the attackers' key, and count its answer and leaks."""
    headers = {"Authorization": f"Bearer {request.pop('key', targets.key)}"} | request.pop("headers", {})
    url = address(targets) + path
    try:
        answer = await http.request(method, url, headers=headers, **request)
    except httpx.TransportError:
        harm.statuses[f"{kind} cut"] += 1
        raise
    harm.statuses[f"{kind} {answer.status_code}"] += 1
    if targets.canary in answer.text or targets.canary in str(answer.headers):
        harm.leaks.append(f"{method} {path}: {targets.canary} in a {answer.status_code}")
    return answer


def address(targets: Targets) -> str:
    """Address of a replica that is not frozen."""
    is_alive = time.monotonic() < targets.victim_until_s
    return random.choice([*targets.urls, targets.victim] if is_alive else targets.urls)
