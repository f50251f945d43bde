"""Run one simulated worker of the release on PYTHONPATH until SIGTERM, then print the answers that it got.

`benchmarks.service.upgrade` starts it as a file, under PYTHONSAFEPATH: each import is then of the checkout on
PYTHONPATH, which may be an older release than this file.
"""

import asyncio
import json
import random
import signal
import sys
from collections.abc import Callable
from typing import Any

import httpx

from benchmarks.service.workers import SimulatedWorker, Tally, client
from shardtune.workers.agent.responses import read_lease

_WAIT_S = 1.0


class ReadingWorker(SimulatedWorker):
    """Simulated worker that reads each lease as its release's agent does, and ends if it cannot."""

    async def _run(self, http: httpx.AsyncClient, lease: dict[str, Any], stopped: Callable[[], bool]) -> None:
        # Fields that this release does not know are gone from what it read, as they are for its agent.
        task = read_lease(httpx.Response(200, json=lease)).task.model_dump(mode="json")
        await super()._run(http, lease | {"task": task}, stopped)


async def main(name: str, urls: list[str]) -> None:
    """Work until SIGTERM; the run in progress is reported first."""
    is_stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_stopping.set)
    tally = Tally()
    async with client(timeout_s=5 + _WAIT_S) as http:
        worker = ReadingWorker(name, urls, tally, lambda: random.uniform(0.05, 0.5))
        await worker.work(http, is_stopping.is_set, wait_s=_WAIT_S)
    applied = [[*key, count] for key, count in tally.applied.items()]
    print(json.dumps({"statuses": tally.statuses, "not_answered": tally.not_answered, "applied": applied}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
