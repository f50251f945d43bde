"""The hosts of a worker over several, or its part of one, for a line."""

from collections.abc import Sequence

from shardtune.api_schemas.machines.hardware import Inventory

_MOST = 16
_SHORT = 12
"""Of a GPU's UUID, as everywhere."""


def hosts(inventory: Inventory) -> str:
    """`n0 (eth0), n1 (eth0)`, or `cpu0, cpu1 of n0`; empty for a worker that has one host alone, and where nobody said."""
    if inventory.share is not None:
        devices = [device[:_SHORT] for device in inventory.share.devices]
        return f"{listing(devices)} of {inventory.details.get('host') or inventory.share.host}"
    listed = inventory.details.get("hosts")
    if inventory.cluster.nodes == 1 or not isinstance(listed, list):
        return ""
    return listing([_host(one) for one in listed])


def _host(one: object) -> str:
    if not isinstance(one, dict):
        return str(one)
    interface = one.get("interface")
    return f"{one.get('host')} ({interface})" if interface else str(one.get("host"))


def listing(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {more} more" if more > 0 else "")
