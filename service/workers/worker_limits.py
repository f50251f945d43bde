"""Limits on the database rows that a worker's API key can create: registered workers, and new registrations per
minute.
"""

from sqlalchemy.orm import Session

from shardtune.api_schemas.access.keys import DEFAULT_PROJECT
from shardtune.api_schemas.trials.leases import Registration
from shardtune.db.queries import keys, workers
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.http.errors import Conflict, TooManyRequests
from shardtune.service.process.context import Context

_EVERY_PROJECT = "*"
"""Key under which workers that serve every project share one rate limit; no project can have this name."""


def check(context: Context, session: Session, registration: Registration, registered: WorkerRow | None) -> None:
    """Check that registering a worker stays within the limits of its project.

    Raises:
        Conflict: the project has the maximum number of workers.
        TooMany: the project registered too many new workers or fingerprints in this minute.
    """
    # A restart with the same name and fingerprint writes no new rows, so it always passes: a fleet that restarts must
    # come back.
    if registered is not None and registered.fingerprint_key == registration.inventory.fingerprint.content_key():
        return
    project_id, settings = context.principal.project_id, context.settings
    if registered is None:
        # The lock makes count and insert one step for two simultaneous requests. No worker is locked yet (note [lock
        # order]).
        keys.lock_project(session, project_id or DEFAULT_PROJECT)
    if registered is None and workers.count(session, project_id) >= settings.max_workers:
        raise Conflict(
            "too_many_workers",
            f"{settings.max_workers} workers are registered already (SHARDTUNE_MAX_WORKERS); those that are gone are forgotten "
            f"after {settings.keep_workers_days:g} days, or at once by `shardtune workers forget`",
        )
    rate_key = f"workers of {project_id or _EVERY_PROJECT}"
    wait_s = context.rates.count(rate_key, settings.registrations_per_minute, context.now())
    if wait_s is not None:
        raise TooManyRequests(
            "quota_registrations",
            f"{settings.registrations_per_minute} new workers or changes of hardware and software were registered this "
            "minute; wait for the next one",
            wait_s,
        )
