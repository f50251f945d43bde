"""The hosts of a worker over several, for a line."""

from collections.abc import Sequence

from shardtune.api_schemas.hardware import Inventory

_MOST = 16


def hosts(inventory: Inventory) -> str:
    """`n0 (eth0), n1 (eth0)`; empty for a worker on one host, and where nobody said."""
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
