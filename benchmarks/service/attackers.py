"""Clients that mean harm, for `benchmarks.service.hostile`: each kind sends the worst it can, bounded in number and pace."""

import asyncio
import json
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event

import httpx

from benchmarks.service import memory_attackers
from benchmarks.service.targets import Harm, Targets, address, send
from benchmarks.service.workers import INVENTORY, client
from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from tests.support.service.simulated_worker import CLUSTER, SPEC

_BODY_BYTES = 1 << 20
_NAMES = 1000
_DRIP_S = 1.0
_GIVE_UP_S = 20.0
# Made once: their cost is the attackers', who have machines of their own.
_DOCUMENT = json.dumps({"model": [[[index]] for index in range(_BODY_BYTES // 16)]}).encode()
_FORM = "&".join(f"f{index}={'x' * 10}" for index in range(_BODY_BYTES // 18)).encode()


Attack = Callable[[httpx.AsyncClient, Targets, Harm, random.Random], Awaitable[None]]


async def attack(targets: Targets, clients: int, harm: Harm, stopped: Callable[[], bool]) -> None:
    """Run so many clients, of each kind in turn, until `stopped`."""
    async with AsyncExitStack() as stack:
        https = [await stack.enter_async_context(client()) for _ in range(clients)]
        kinds = [KINDS[targets.kinds[index % len(targets.kinds)]] for index in range(clients)]
        pairs = zip(kinds, https, strict=True)
        await asyncio.gather(*(_keep_on(kind, http, targets, harm, stopped) for kind, http in pairs))


def attack_apart(targets: Targets, clients: int, over: Event, harms: "Queue[Harm]") -> None:
    """Attack in a separate process, and put the results into the queue."""
    harm = Harm()
    asyncio.run(attack(targets, clients, harm, over.is_set))
    harms.put(harm)


async def _keep_on(
    kind: Attack, http: httpx.AsyncClient, targets: Targets, harm: Harm, stopped: Callable[[], bool]
) -> None:
    chooser = random.Random()
    while not stopped():
        # Answers that do not come are the service's defence; a client that is cut off comes back.
        with suppress(httpx.TransportError, OSError, TimeoutError):
            async with asyncio.timeout(_GIVE_UP_S):
                await kind(http, targets, harm, chooser)
        await asyncio.sleep(targets.pause_s * chooser.uniform(0.5, 1.5))


async def _bad_key(http: httpx.AsyncClient, targets: Targets, harm: Harm, chooser: random.Random) -> None:
    """A large document with a key that is none."""
    path = chooser.choice(["/v1/studies", "/v1/workers", "/v1/best:resolve", "/v1/leases"])
    headers = {"content-type": "application/json"}
    key = secrets.token_urlsafe(32)
    await send(http, targets, harm, "bad_key", "POST", path, content=_DOCUMENT, headers=headers, key=key)


async def _form(http: httpx.AsyncClient, targets: Targets, harm: Harm, _chooser: random.Random) -> None:
    """A form of many fields at a door that needs no key."""
    headers = {"content-type": "application/x-www-form-urlencoded"}
    await send(http, targets, harm, "form", "POST", "/login", content=_FORM, headers=headers)


async def _slow_body(_http: httpx.AsyncClient, targets: Targets, harm: Harm, chooser: random.Random) -> None:
    """A request of which a byte a second arrives."""
    url = httpx.URL(address(targets))
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = f"POST /v1/studies HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {targets.key}\r\ncontent-length: {_BODY_BYTES}\r\n"
    try:
        # Half of them never end their headers.
        writer.write(head.encode() + (b"\r\n" if chooser.random() < 0.5 else b""))
        started_s = time.monotonic()
        while time.monotonic() - started_s < _GIVE_UP_S / 2:
            writer.write(b"x")
            await writer.drain()
            with suppress(TimeoutError):
                async with asyncio.timeout(_DRIP_S):
                    await reader.read(1)
                harm.statuses["slow_body ended by the service"] += 1
                return
        harm.statuses["slow_body ended by the client"] += 1
    finally:
        writer.close()


async def _tarpit(http: httpx.AsyncClient, targets: Targets, harm: Harm, chooser: random.Random) -> None:
    """Webhooks to a receiver that never answers, and events for them."""
    spec = SPEC | {"cluster": CLUSTER.model_dump(), "seed": chooser.randrange(10**6)}
    await send(http, targets, harm, "tarpit", "POST", "/v1/webhooks", json={"url": targets.tarpit})
    answer = await send(http, targets, harm, "tarpit", "POST", "/v1/studies", json=spec)
    if answer.status_code == 201:
        study_id = answer.json()["study_id"]
        await send(http, targets, harm, "tarpit", "POST", f"/v1/studies/{study_id}:cancel")


async def _names(http: httpx.AsyncClient, targets: Targets, harm: Harm, chooser: random.Random) -> None:
    """One of a thousand workers that nobody has, with as much in its inventory as is taken."""
    inventory = INVENTORY | {"causal_lm_types": [f"{'x' * 50}{index}" for index in range(500)]}
    body = {"protocol_version": PROTOCOL_VERSION, "name": f"w{chooser.randrange(_NAMES)}", "session": None}
    await send(http, targets, harm, "names", "POST", "/v1/workers", json=body | {"inventory": inventory})


async def _pry(http: httpx.AsyncClient, targets: Targets, harm: Harm, chooser: random.Random) -> None:
    """Requests for the other project's objects, by every list and by their ids."""
    lists = ["/v1/studies", "/v1/workers", "/v1/webhooks", "/v1/keys", "/v1/fingerprints", "/v1/recommendations"]
    pages = ["/metrics", "/readyz", "/workers", "/studies", "/"]
    answer = await send(http, targets, harm, "pry", "GET", chooser.choice(lists + pages))
    if targets.foreign:
        path = chooser.choice(targets.foreign)
        answer = await send(http, targets, harm, "pry", "GET", path)
        if answer.is_success:
            harm.leaks.append(f"GET {path}: {answer.status_code}")


KINDS: Mapping[str, Attack] = {
    "bad_key": _bad_key,
    "slow_body": _slow_body,
    "form": _form,
    "tarpit": _tarpit,
    "names": _names,
    "pry": _pry,
    "trace_bomb": memory_attackers.trace_bomb,
    "unfinished_upload": memory_attackers.unfinished_upload,
    "slow_reader": memory_attackers.slow_reader,
}
