"""Inventory with which a worker registers: detected, measured and overridden values together."""

import logging

from pydantic import JsonValue

from shardtune.api_schemas.machines.hardware import Fingerprint, Inventory
from shardtune.workers.config.allowlist import Allowed
from shardtune.workers.config.overrides import override
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.machine import hardware_speed
from shardtune.workers.machine.inventory import DetectionFailed, Gpus, Libraries, find_gpus, inventory

log = logging.getLogger(__name__)


def offer(
    settings: WorkerSettings, gpus: Gpus, libraries: Libraries, allowed: Allowed = Allowed(), **details: JsonValue
) -> Inventory:
    """Inventory (hardware and software) with which a worker registers; `details` are shown to people only.

    Raises:
        ValueError, DetectionFailed: see `inventory`; or an override has an invalid value.
    """
    detected = inventory(
        gpus, libraries, settings.ranks, settings.memory_gib, allowed, settings.host_partition, **details
    )
    return with_measured(settings, detected)


def with_measured(settings: WorkerSettings, detected: Inventory) -> Inventory:
    """Add the bandwidths and FLOP/s that were measured on the hosts to a worker's inventory (hardware and software).
    Then replace those fields for which the worker's settings give other values."""
    measured = hardware_speed.stored(settings.work_dir, detected)
    fingerprint = hardware_speed.with_bandwidth(detected.fingerprint, measured, detected.cluster.world_size)
    return detected.model_copy(
        update={"measured": measured, "fingerprint": override(fingerprint, settings.fingerprint_override)}
    )


def detect_again(settings: WorkerSettings, libraries: Libraries) -> Fingerprint | None:
    """Fingerprint of this machine (hardware and software versions) as detected now. The library versions are those with
    which the ranks were started. None if the hardware cannot be detected."""
    try:
        return offer(settings, find_gpus().for_ranks(settings.ranks), libraries).fingerprint
    except (DetectionFailed, ValueError) as error:
        # No reason to end here: `device_watch` decides about a GPU that is gone.
        log.warning("the fingerprint could not be detected again: %s", error)
        return None
