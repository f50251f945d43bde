"""One simulated worker until it is killed: `python -m benchmarks.service.worker_process NAME URL…`."""

import asyncio
import random
import sys

from benchmarks.service.workers import SimulatedWorker, Tally, client

_WAIT_S = 1.0


async def main(name: str, urls: list[str]) -> None:
    """Work for ever."""
    # As patient as a worker is: a replica that is frozen takes the request and does not answer.
    async with client(timeout_s=5 + _WAIT_S) as http:
        worker = SimulatedWorker(name, urls, Tally(), lambda: random.uniform(0.05, 1.5))
        await worker.work(http, lambda: False, wait_s=_WAIT_S)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
