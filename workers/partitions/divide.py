"""`--split`: divide a machine among workers of several sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardtune.api_schemas.machines.host_partition import MOST_DEVICES, HostPartition
from shardtune.workers.machine.inventory import Gpus
from shardtune.workers.partitions import links


@dataclass(frozen=True)
class Cores:
    """The CPUs that this process may run on."""

    in_order: Sequence[int]
    """Side by side those that share a socket, then a core."""
    numa_nodes: Mapping[int, int]
    """Of each, where the kernel says so."""


@dataclass(frozen=True)
class Division:
    """What one worker gets."""

    name: str
    """Such as `1x3`: of those with one rank the fourth."""
    ranks: int
    share: HostPartition
    gpu_uuids: tuple[str, ...]
    cores: frozenset[int]


def divide(host: str, gpus: Gpus, ranks: int, sizes: Sequence[int], cores: Cores) -> list[Division]:
    """As many workers of each size as there is room for, the small ones first. `ranks`: of the whole machine.

    Raises:
        ValueError: a size does not divide the machine, or CPU ranks have no core each.
    """
    _check(gpus, ranks, sizes, cores)
    found, smaller = [], 0
    for size in sorted(sizes):
        found += [_division(host, gpus, ranks, size, smaller + 1, first, cores) for first in range(0, ranks, size)]
        smaller = size
    return found


def _check(gpus: Gpus, ranks: int, sizes: Sequence[int], cores: Cores) -> None:
    what, named = "GPUs" if gpus.devices else "CPU ranks", ",".join(map(str, sizes))
    possible = [size for size in range(1, ranks + 1) if ranks % size == 0]
    for size in sizes:
        if size not in possible:
            raise ValueError(
                f"split ({named}) must name sizes that divide the {ranks} {what} of this machine, and {size} does not; "
                f"choose from {', '.join(map(str, possible))}"
            )
    if not gpus.devices and ranks > len(cores.in_order):
        raise ValueError(
            f"split ({named}) gives each CPU rank cores of its own, and there are {len(cores.in_order)} for {ranks} ranks; "
            f"use --ranks {len(cores.in_order)}"
        )
    if max(ranks, 0 if gpus.devices else len(cores.in_order)) > MOST_DEVICES:
        raise ValueError(f"split ({named}) knows machines of up to {MOST_DEVICES} GPUs or cores; run one worker here")


def _division(host: str, gpus: Gpus, ranks: int, size: int, least_ranks: int, first: int, cores: Cores) -> Division:
    members = range(first, first + size)
    count, ordered = len(cores.in_order), cores.in_order
    mine = ordered[first * count // ranks : (first + size) * count // ranks]
    if gpus.devices:
        uuids = gpus.uuids
        devices = tuple(uuids[index] for index in members)
        crosses = tuple(uuids[index] for index in links.crossed_by_gpus(members, gpus))
    else:
        devices = tuple(f"cpu{core}" for core in mine)
        crossed = links.crossed_by_cores(size, mine, ordered, cores.numa_nodes)
        crosses = tuple(f"cpu{core}" for core in crossed)
    share = HostPartition(host=host, devices=devices, crosses=crosses, least_ranks=least_ranks, part=size / ranks)
    # More GPUs than cores: nothing to keep to.
    kept = frozenset(mine if count >= ranks else ordered)
    return Division(f"{size}x{first // size}", size, share, devices if gpus.devices else (), kept)
