"""What a worker offers: what was detected, what was measured of it, and what it was told to report otherwise."""

import logging

from pydantic import JsonValue

from shardtune.api_schemas.machines.hardware import Fingerprint, Inventory
from shardtune.workers.config.allowlist import Allowed
from shardtune.workers.config.overrides import overridden
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.machine import hardware_speed
from shardtune.workers.machine.inventory import DetectionFailed, Gpus, Libraries, find_gpus, inventory

log = logging.getLogger(__name__)


def offer(
    settings: WorkerSettings, gpus: Gpus, libraries: Libraries, allowed: Allowed = Allowed(), **details: JsonValue
) -> Inventory:
    """The inventory a worker registers with; `details` are for a person to read.

    Raises:
        ValueError, DetectionFailed: as `inventory`; an override that the field cannot have.
    """
    found = inventory(gpus, libraries, settings.ranks, settings.memory_gib, allowed, settings.share, **details)
    return with_measured(settings, found)


def with_measured(settings: WorkerSettings, detected: Inventory) -> Inventory:
    """With what was measured of these hosts, and what the worker was told to report otherwise."""
    measured = hardware_speed.stored(settings.work_dir, detected)
    found = hardware_speed.with_bandwidth(detected.fingerprint, measured, detected.cluster.world_size)
    return detected.model_copy(
        update={"measured": measured, "fingerprint": overridden(found, settings.fingerprint_override)}
    )


def look_again(settings: WorkerSettings, libraries: Libraries) -> Fingerprint | None:
    """The fingerprint as it is now, with the libraries that the ranks were started with; None: it cannot be told now."""
    try:
        return offer(settings, find_gpus().first(settings.ranks), libraries).fingerprint
    except (DetectionFailed, ValueError) as error:
        # A GPU that is gone is `device_watch`'s business.
        log.warning("the fingerprint could not be looked at again: %s", error)
        return None
