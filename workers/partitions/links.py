"""Devices that share connections (PCIe switches, host bridges, NUMA nodes) with the collectives of a set of devices.

Sets whose collectives use the same PCIe switches, host bridges or NUMA nodes would slow each other. By NVML's topology, the
traffic of a set goes as far up as its two members that are farthest apart (PIX, PXB, PHB, NODE, SYS in `nvidia-smi topo -m`),
and shares links with every device within that distance. Where NVLink joins each pair it shares none; one device has no
collectives.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from shardtune.workers.machine.inventory import Gpus

_FARTHEST = 4
_DISTANCE = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": _FARTHEST}


def crossed_by_gpus(members: Collection[int], gpus: Gpus) -> list[int]:
    """Indices of the GPUs whose PCIe connections the collectives of a set of GPUs may also use, the set included; empty
    if NVLink joins each pair of the set."""
    kinds = {frozenset(link[:2]): link[2] for link in gpus.links}
    inside = [kinds.get(frozenset(pair), "") for pair in combinations(members, 2)]
    if all(word.startswith("NV") for word in inside):
        return []
    widest = max(_distance(word) for word in inside if not word.startswith("NV"))

    def is_near(index: int) -> bool:
        return any(
            _distance(kinds.get(frozenset((index, member)), "")) <= widest for member in members if member != index
        )

    return [index for index in range(len(gpus.devices)) if index in members or is_near(index)]


def _distance(word: str) -> int:
    """Distance of two GPUs over PCIe, in the order of NVML's kinds of connection: from 0 (same switch, or joined by
    NVLink) to 4 (different sockets, or unknown)."""
    # For a pair joined by NVLink the PCIe distance is unknown: they may hang on one switch, so it counts as near. A
    # pair of which NVML says nothing counts as far.
    return 0 if word.startswith("NV") else _DISTANCE.get(word, _FARTHEST)


def crossed_by_cores(ranks: int, members: Collection[int], cores: Sequence[int], nodes: Mapping[int, int]) -> list[int]:
    """Cores on the NUMA nodes of a set of CPU ranks: the ranks communicate through the memory of these nodes. `nodes`
    maps cores to NUMA nodes, as far as known."""
    if ranks == 1:
        return []
    used = {nodes.get(core) for core in members}
    return [core for core in cores if nodes.get(core) in used or None in used]
