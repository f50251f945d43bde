"""Background work of a service process: steps that are repeated at intervals, even after one of them raises."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from sqlalchemy.exc import OperationalError

from shardtune.db.limits import is_busy, is_outage

log = logging.getLogger(__name__)

Step = Callable[[], Awaitable[object]]
Item = TypeVar("Item")


async def run_every(pause_s: float, at_once: bool = False, **steps: Step) -> None:
    """Repeat a list of steps until cancelled, with a pause before each round. With `at_once`, the first round comes
    without a pause.
    """
    if not at_once:
        await asyncio.sleep(pause_s)
    while True:
        # Broad on purpose: if a step ended the loop, the process would look healthy and do half of its work. What was
        # due stays due.
        for name, step in steps.items():
            try:
                await step()
            except Exception:
                log.exception("%s failed; trying again", name.replace("_", " "))
        await asyncio.sleep(pause_s)


def sum_unlocked(items: Iterable[Item], step: Callable[[Item], int], name: Callable[[Item], str]) -> int:
    """Apply a step to each item. Items whose database rows another transaction has locked are skipped.

    Returns the sum of the steps' results. `name` returns the resource of an item that may be locked, such as a run's
    study: after one conflict, all other items of this resource are skipped, too. Skipped items are due again in the
    next round.

    Raises:
        DBAPIError: the database is away or overloaded; the remaining items are left for the next round.
        TimeoutError: no connection was free; the remaining items are left for the next round.
        Exception: the first error of a step, after all other items had theirs.
    """
    total, locked_names, failures = 0, set[str](), list[Exception]()
    # Each wait for a locked row takes the whole lock timeout, so a study is tried once per round, not once per run.
    for item in items:
        if name(item) in locked_names:
            continue
        try:
            total += step(item)
        except OperationalError as error:
            if not is_busy(error):
                raise
            locked_names.add(name(item))
            log.warning("passed over until the next round: %s: %s", name(item), error.orig)
        # Broad on purpose: otherwise one row that no step can take would keep all rows behind it waiting for ever.
        except Exception as error:
            if is_outage(error):
                raise
            log.exception("a step failed: %s", name(item))
            failures.append(error)
    if failures:
        raise failures[0]
    return total
