"""Text for the hosts of a multi-host worker, or for a worker's partition of one host."""

from collections.abc import Sequence

from shardtune.api_schemas.machines.hardware import Inventory

_MOST_NAMES = 16
_UUID_CHARACTERS = 12
"""Number of characters of a GPU's UUID that pages and commands show."""


def hosts(inventory: Inventory) -> str:
    """List a worker's hosts as `n0 (eth0), n1 (eth0)`, or the part of a host that it uses as `cpu0, cpu1 of n0`. Empty
    if the worker uses one complete host, or its hosts are unknown."""
    if inventory.host_partition is not None:
        devices = [device[:_UUID_CHARACTERS] for device in inventory.host_partition.devices]
        return f"{listing(devices)} of {inventory.details.get('host') or inventory.host_partition.host}"
    # `details` is free-form JSON that workers of other versions also send: trust no type.
    listed = inventory.details.get("hosts")
    if inventory.cluster.nodes == 1 or not isinstance(listed, list):
        return ""
    return listing([_host_text(host) for host in listed])


def _host_text(host: object) -> str:
    if not isinstance(host, dict):
        return str(host)
    interface = host.get("interface")
    return f"{host.get('host')} ({interface})" if interface else str(host.get("host"))


def listing(names: Sequence[str]) -> str:
    """List the first names of a list and count the others: `n0, n1 and 3 more`."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
