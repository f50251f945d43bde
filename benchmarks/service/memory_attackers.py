"""Clients that try to exhaust a replica's memory, for `benchmarks.service.hostile`: trace bombs, unfinished uploads, and
readers that do not read."""

import asyncio
import os
import random
from contextlib import suppress

import httpx

from benchmarks.service.targets import Harm, Targets, address, send

_MIB = 1 << 20
_BOMB = b"[NaN," + b"{}," * (10 * _MIB) + b"{}]"
"""JSON of 30 MiB that takes gigabytes once it is parsed; `NaN` has the service look for what no database stores."""
_TRACE = b"\x1f\x8b" + os.urandom(16 * _MIB - 2)
"""Largest content that the service stores as a rank's trace."""
_UNFINISHED_S = 15.0
"""Seconds for which a client neither sends nor reads: longer than the time that the service gives to it."""
_TRACE_PATH = "/v1/runs/run-of-nobody/traces/0"


async def trace_bomb(http: httpx.AsyncClient, targets: Targets, harm: Harm, chooser: random.Random) -> None:
    """Send a large JSON document to the address of a trace, as JSON or as bytes."""
    kind = chooser.choice(["application/json", "application/octet-stream"])
    headers = {"content-type": kind, "shardtune-session": "none", "shardtune-attempt": "1"}
    await send(http, targets, harm, "trace_bomb", "PUT", _TRACE_PATH, content=_BOMB, headers=headers)


async def unfinished_upload(_http: httpx.AsyncClient, targets: Targets, harm: Harm, _chooser: random.Random) -> None:
    """Upload all but the last byte of a trace."""
    head = (
        f"PUT {_TRACE_PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {targets.key}\r\n"
        "content-type: application/octet-stream\r\nshardtune-session: none\r\nshardtune-attempt: 1\r\n"
        f"content-length: {len(_TRACE)}\r\n\r\n"
    )
    answer = await _say_and_wait(targets, head.encode() + _TRACE[:-1], is_reading=True)
    harm.statuses[f"unfinished_upload {answer}"] += 1


async def slow_reader(_http: httpx.AsyncClient, targets: Targets, harm: Harm, _chooser: random.Random) -> None:
    """Request the attackers' own trace and read none of it."""
    head = f"GET {targets.trace} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {targets.key}\r\n\r\n"
    answer = await _say_and_wait(targets, head.encode(), is_reading=False)
    harm.statuses[f"slow_reader {answer}"] += 1


async def _say_and_wait(targets: Targets, request: bytes, is_reading: bool) -> str:
    """Send bytes, then wait; return the answer's status, or `silent`."""
    url = httpx.URL(address(targets))
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        async with asyncio.timeout(_UNFINISHED_S):
            with suppress(ConnectionError):
                writer.write(request)
                await writer.drain()
            if not is_reading:
                # The stream reader stops at its limit; what follows stays with the service.
                await asyncio.sleep(_UNFINISHED_S)
            line = await reader.readline()
            return line.decode("latin-1").split(" ")[1] if b" " in line else "cut"
    except TimeoutError:
        return "silent"
    except ConnectionError:
        return "cut"
    finally:
        writer.transport.abort()
