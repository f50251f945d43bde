"""What a service process does beside its requests: the same steps again and again, whatever one of them meets."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

Step = Callable[[], Awaitable[object]]


async def run_every(pause_s: float, at_once: bool = False, **steps: Step) -> None:
    """Pause, then take each of the steps, until cancelled; `at_once`: before the first pause, too.

    A border, as a request is: a step that breaks is logged by its name and ends neither the others nor the loop, without
    which a process would seem well and do half of its work. What was due stays due.
    """
    if not at_once:
        await asyncio.sleep(pause_s)
    while True:
        for name, step in steps.items():
            try:
                await step()
            except Exception:
                log.exception("%s failed; trying again", name.replace("_", " "))
        await asyncio.sleep(pause_s)
