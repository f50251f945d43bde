"""Which hosts make a gang: the largest set of hosts that are equal in all that makes a measurement stale, code included."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.workers.gang.messages import NodeReady

Equal = Callable[[Any, Any], bool]
Host = TypeVar("Host")


def _within(share: float) -> Equal:
    """Amounts: so far apart at most, as a share of the larger one."""
    return lambda one, other: abs(one - other) <= share * max(one, other)


def _same_series(one: str, other: str) -> bool:
    """Versions: the first two numbers."""
    return re.findall(r"\d+", one)[:2] == re.findall(r"\d+", other)[:2]


_LOOSELY: Mapping[str, Equal] = {
    "gpu_memory_gib": _within(0.02),
    "sm_clock_mhz": _within(0.01),
    "memory_clock_mhz": _within(0.01),
    "power_limit_w": _within(0.02),
    "cpu_max_mhz": _within(0.01),
    "host_memory_gib": _within(0.1),
    "python": _same_series,
    "kernel": _same_series,
}
"""As `tuner.freshness.fingerprints` judges them, which workers may not import; a test holds the two against each other."""
_OF_RECORD = frozenset({"version", "overridden", "intra_node_gb_per_s", "inter_node_gb_per_s"})
"""Say something about the record, or are measured over the gang."""
_OF_HOST = frozenset({"cpu_count", "cpu_topology", "cpu_max_mhz"})
"""With GPUs they make nothing stale."""


def differences(one: NodeReady, other: NodeReady) -> list[str]:
    """Each thing in which two hosts differ that must be equal, with both values; empty: they may train together."""
    left, right = one.inventory, other.inventory
    found = [
        f"{field} ({_short(before)} and {_short(after)})"
        for field in Fingerprint.model_fields
        if field not in _OF_RECORD
        and not (field in _OF_HOST and left.fingerprint.device == "cuda")
        and not _equal(field, before := getattr(left.fingerprint, field), after := getattr(right.fingerprint, field))
    ]
    ranks = (left.cluster.gpus_per_node, right.cluster.gpus_per_node)
    if ranks[0] != ranks[1]:
        found.append(f"ranks ({ranks[0]} and {ranks[1]})")
    found += [
        f"{name} ({one.code.get(name, 'missing')[:100]} and {other.code.get(name, 'missing')[:100]})"
        for name in sorted(one.code.keys() | other.code.keys())
        if one.code.get(name) != other.code.get(name)
    ]
    return found


def _equal(field: str, one: object, other: object) -> bool:
    if one is None or other is None or one == other:
        return True
    return field in _LOOSELY and _LOOSELY[field](one, other)


def _short(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def largest_equal(hosts: Sequence[tuple[Host, NodeReady]]) -> list[tuple[Host, NodeReady]]:
    """The largest set of hosts that equal its first one; of several the one that begins first, in the given order."""
    best: list[tuple[Host, NodeReady]] = []
    for _, first in hosts:
        equal = [(host, ready) for host, ready in hosts if not differences(first, ready)]
        if len(equal) > len(best):
            best = equal
    return best


def rejection(nodes: int, hosts: Sequence[tuple[str, NodeReady]]) -> str:
    """Why these hosts make no gang of so many."""
    equal = largest_equal([(name, ready) for name, ready in hosts])
    names = {name for name, _ in equal}
    reference = equal[0]
    others = [
        f"{name} differs from {reference[0]} in {'; '.join(differences(reference[1], ready))}"
        for name, ready in hosts
        if name not in names
    ]
    return (
        f"nodes ({nodes}) must be equal hosts, and of {len(hosts)} only {len(equal)} are ({', '.join(sorted(names))}): "
        f"{'. '.join(others)}. Make them equal, leave the others out, or use fewer --nodes"
    )
