"""What a worker offers: what was detected, what was measured of it, and what it was told to report otherwise."""

import logging

from pydantic import JsonValue

from shardtune.api_schemas.hardware import Fingerprint, Inventory, MeasuredHardware, banded
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
    return with_measured(settings, inventory(gpus, libraries, settings.ranks, settings.memory_gib, allowed, **details))


def with_measured(settings: WorkerSettings, detected: Inventory) -> Inventory:
    """With what was measured of these hosts, and what the worker was told to report otherwise."""
    measured = hardware_speed.stored(settings.work_dir, detected)
    found = with_bandwidth(detected.fingerprint, measured, detected.cluster.nodes, detected.cluster.world_size)
    return detected.model_copy(
        update={"measured": measured, "fingerprint": overridden(found, settings.fingerprint_override)}
    )


def with_bandwidth(found: Fingerprint, measured: MeasuredHardware | None, nodes: int, ranks: int) -> Fingerprint:
    """With the band of the bandwidth that `measure-hardware` found between the ranks."""
    reduced = [item for item in measured.collectives if item.operation == "all_reduce"] if measured else []
    if not reduced or ranks < 2:
        return found
    largest = max(reduced, key=lambda item: item.bytes)
    # Bus bandwidth as nccl-tests defines it (doc/PERFORMANCE.md): what each rank's link carries, whatever their number.
    gb_per_s = largest.bytes / largest.seconds * 2 * (ranks - 1) / ranks / 1e9
    field = "intra_node_gb_per_s" if nodes == 1 else "inter_node_gb_per_s"
    return found.model_copy(update={field: banded(gb_per_s)})


def look_again(settings: WorkerSettings, libraries: Libraries) -> Fingerprint | None:
    """The fingerprint as it is now, with the libraries that the ranks were started with; None: it cannot be told now."""
    try:
        return offer(settings, find_gpus().first(settings.ranks), libraries).fingerprint
    except (DetectionFailed, ValueError) as error:
        # A GPU that is gone is `device_watch`'s business.
        log.warning("the fingerprint could not be looked at again: %s", error)
        return None
