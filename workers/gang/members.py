"""Choice of a gang's hosts: the largest set of hosts that are equal in everything, code included, that decides whether
a measurement stays valid."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.workers.gang.messages import NodeReady

Equal = Callable[[Any, Any], bool]
Host = TypeVar("Host")


def _within(fraction: float) -> Equal:
    """Return a comparison function that treats two amounts as equal if they differ by at most a fraction of the larger one."""
    return lambda first, second: abs(first - second) <= fraction * max(first, second)


def _same_series(first: str, second: str) -> bool:
    """Whether the first two numbers of two version strings are equal."""
    return re.findall(r"\d+", first)[:2] == re.findall(r"\d+", second)[:2]


# Copied from `tuner.freshness.fingerprints`, which workers may not import; a test compares the two.
_LOOSE_EQUALITY: Mapping[str, Equal] = {
    "gpu_memory_gib": _within(0.02),
    "sm_clock_mhz": _within(0.01),
    "memory_clock_mhz": _within(0.01),
    "power_limit_w": _within(0.02),
    "cpu_max_mhz": _within(0.01),
    "host_memory_gib": _within(0.1),
    "python": _same_series,
    "kernel": _same_series,
}
"""Comparison functions, by name of the field, for those fields of a host's fingerprint (hardware and software versions)
that count as equal within a tolerance."""
_OF_RECORD = frozenset({"version", "overridden", "intra_node_gb_per_s", "inter_node_gb_per_s"})
"""Fields of a fingerprint (hardware and software versions) that are not compared between hosts: they describe the
record itself, or were measured over all hosts together."""
_OF_HOST = frozenset({"cpu_count", "cpu_topology", "cpu_max_mhz"})
"""Fields of a fingerprint (hardware and software versions) in which hosts with GPUs may differ, because these fields do
not change what is measured on GPUs."""


def differences(first: NodeReady, second: NodeReady) -> list[str]:
    """Differences between two hosts in properties that must be equal, with both hosts' values; empty if the hosts may train
    together."""
    first_inventory, second_inventory = first.inventory, second.inventory
    differing = [
        f"{field} ({_short(before)} and {_short(after)})"
        for field in Fingerprint.model_fields
        if field not in _OF_RECORD
        and not (field in _OF_HOST and first_inventory.fingerprint.device == "cuda")
        and not _equal(
            field,
            before := getattr(first_inventory.fingerprint, field),
            after := getattr(second_inventory.fingerprint, field),
        )
    ]
    ranks = (first_inventory.cluster.gpus_per_node, second_inventory.cluster.gpus_per_node)
    if ranks[0] != ranks[1]:
        differing.append(f"ranks ({ranks[0]} and {ranks[1]})")
    differing += [
        f"{name} ({first.code.get(name, 'missing')[:100]} and {second.code.get(name, 'missing')[:100]})"
        for name in sorted(first.code.keys() | second.code.keys())
        if first.code.get(name) != second.code.get(name)
    ]
    return differing


def _equal(field: str, first: object, second: object) -> bool:
    if first is None or second is None or first == second:
        return True
    return field in _LOOSE_EQUALITY and _LOOSE_EQUALITY[field](first, second)


def _short(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def largest_equal(hosts: Sequence[tuple[Host, NodeReady]]) -> list[tuple[Host, NodeReady]]:
    """Largest set of hosts whose members all match the first of them in hardware and versions. If several sets are
    equally large, the first in the given order."""
    best: list[tuple[Host, NodeReady]] = []
    for _, first in hosts:
        equal = [(host, ready) for host, ready in hosts if not differences(first, ready)]
        if len(equal) > len(best):
            best = equal
    return best


def explain_rejection(nodes: int, hosts: Sequence[tuple[str, NodeReady]]) -> str:
    """Message that explains why the given hosts cannot form a gang of `nodes` hosts."""
    equal = largest_equal([(name, ready) for name, ready in hosts])
    names = {name for name, _ in equal}
    reference = equal[0]
    different_hosts = [
        f"{name} differs from {reference[0]} in {'; '.join(differences(reference[1], ready))}"
        for name, ready in hosts
        if name not in names
    ]
    return (
        f"nodes ({nodes}) must be equal hosts, and of {len(hosts)} only {len(equal)} are ({', '.join(sorted(names))}): "
        f"{'. '.join(different_hosts)}. Make them equal, leave the others out, or use fewer --nodes"
    )
