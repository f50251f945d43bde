"""One simulated worker until it is killed: `python -m benchmarks.service.worker_process NAME URL…`."""

import asyncio
import random
import sys

from benchmarks.service.workers import Seen, SimulatedWorker, client


async def main(name: str, urls: list[str]) -> None:
    """Work for ever."""
    async with client() as http:
        await SimulatedWorker(name, urls, Seen(), lambda: random.uniform(0.05, 1.5)).work(http, lambda: False)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
