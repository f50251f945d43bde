"""Compare the process's time with the database's clock (db.clock) and keep them in step."""

import logging
from functools import partial

from starlette.concurrency import run_in_threadpool

from shardtune.service.process.background import run_every
from shardtune.service.process.context import Context

log = logging.getLogger(__name__)

# Machines that NTP keeps in step differ by less.
_TOLERANCE_S = 1.0
"""Tolerated difference in seconds between the clock of this machine and the clock of the database."""


async def keep_reading(context: Context) -> None:
    """Read the database's clock at the interval at which workers renew leases, until cancelled."""
    if (warning := clock_warning(context)) is not None:
        log.warning(warning)
    step = partial(run_in_threadpool, context.db.clock.read)
    await run_every(context.settings.heartbeat_s, reading_the_databases_clock=step)


def clock_warning(context: Context) -> str | None:
    """Warning text if the clock of this machine differs from the database's by more than the tolerated seconds; None
    if it does not.
    """
    offset_s = context.db.clock.offset_s
    if abs(offset_s) <= _TOLERANCE_S:
        return None
    direction = "ahead of" if offset_s > 0 else "behind"
    return (
        f"this machine's clock is {abs(offset_s):.0f} s {direction} the database's, by which all times are measured; "
        "nothing depends on it but its own log: set it right, such as by NTP"
    )
