"""Which devices share the way that a set's collectives take.

Sets whose collectives take the same PCIe switches, host bridges or NUMA nodes would slow each other. As far as NVML tells: the
traffic of a set goes as far up as its two members that are farthest apart (PIX, PXB, PHB, NODE, SYS in the words of
`nvidia-smi topo -m`), and meets that of every device within that distance. Where NVLink joins each pair it meets nobody's; one
device has no collectives.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from shardtune.workers.machine.inventory import Gpus

_FARTHEST = 4
_DISTANCE = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": _FARTHEST}


def crossed_by_gpus(members: Collection[int], gpus: Gpus) -> list[int]:
    """GPUs by index with which a set of GPUs shares the way of its collectives, itself among them; none where it has its own."""
    words = {frozenset(link[:2]): link[2] for link in gpus.links}
    inside = [words.get(frozenset(pair), "") for pair in combinations(members, 2)]
    if all(word.startswith("NV") for word in inside):
        return []
    widest = max(_distance(word) for word in inside if not word.startswith("NV"))

    def is_near(index: int) -> bool:
        return any(_distance(words.get(frozenset((index, one)), "")) <= widest for one in members if one != index)

    return [index for index in range(len(gpus.devices)) if index in members or is_near(index)]


def _distance(word: str) -> int:
    """Over PCIe. Of a pair joined by NVLink nothing is known: they may hang on one switch. What NVML does not say is far."""
    return 0 if word.startswith("NV") else _DISTANCE.get(word, _FARTHEST)


def crossed_by_cores(ranks: int, members: Collection[int], cores: Sequence[int], nodes: Mapping[int, int]) -> list[int]:
    """The same for CPU ranks on cores: they talk through the memory of their NUMA nodes. `nodes`: of each core, where known."""
    if ranks == 1:
        return []
    used = {nodes.get(core) for core in members}
    return [core for core in cores if nodes.get(core) in used or None in used]
