"""What a service process does beside its requests: the same steps again and again, whatever one of them meets."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from sqlalchemy.exc import OperationalError

from shardtune.db.limits import is_busy

log = logging.getLogger(__name__)

Step = Callable[[], Awaitable[object]]
Item = TypeVar("Item")


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


def count_done(items: Iterable[Item], step: Callable[[Item], int], name: Callable[[Item], str]) -> int:
    """Take a step for each item, and go on past those whose rows another transaction holds. Returns what the steps returned, added up.

    What is passed over is due in the next round again. `name`: of what is held, such as the study of a run; of it nothing
    more is tried in this round.
    """
    done, held = 0, set[str]()
    for item in items:
        if name(item) in held:
            continue
        try:
            done += step(item)
        except OperationalError as error:
            if not is_busy(error):
                raise
            held.add(name(item))
            log.warning("passed over until the next round: %s: %s", name(item), error.orig)
    return done
