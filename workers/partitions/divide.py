"""Division of a machine among workers of several sizes, for the option `--split`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardtune.api_schemas.machines.host_partition import MOST_DEVICES, HostPartition
from shardtune.workers.machine.inventory import Gpus
from shardtune.workers.partitions import links


@dataclass(frozen=True)
class Cores:
    """CPU cores that this process may run on."""

    in_order: Sequence[int]
    """Cores in an order in which those of one socket are neighbours, and within it the hardware threads of one physical
    core."""
    numa_nodes: Mapping[int, int]
    """NUMA node of each core, as far as the kernel reports it."""


@dataclass(frozen=True)
class Division:
    """Part of the machine that one worker of a divided machine gets."""

    name: str
    """Name of the worker, such as `1x3` for the fourth of the workers with one rank each."""
    ranks: int
    partition: HostPartition
    gpu_uuids: tuple[str, ...]
    cores: frozenset[int]


def divide(host: str, gpus: Gpus, ranks: int, sizes: Sequence[int], cores: Cores) -> list[Division]:
    """Divide the machine into as many workers of each size as fit, the small ones first. `ranks` is the number of ranks
    of the whole machine.

    Raises:
        ValueError: a size does not divide the machine, or there are fewer cores than CPU ranks.
    """
    _require_sizes(gpus, ranks, sizes, cores)
    # Each worker takes runs of more ranks than the next smaller size, so that small runs leave the large workers free.
    divisions, smaller = [], 0
    for size in sorted(sizes):
        divisions += [_division(host, gpus, ranks, size, smaller + 1, first, cores) for first in range(0, ranks, size)]
        smaller = size
    return divisions


def _require_sizes(gpus: Gpus, ranks: int, sizes: Sequence[int], cores: Cores) -> None:
    unit, sizes_text = "GPUs" if gpus.devices else "CPU ranks", ",".join(map(str, sizes))
    possible = [size for size in range(1, ranks + 1) if ranks % size == 0]
    for size in sizes:
        if size not in possible:
            raise ValueError(
                f"split ({sizes_text}) must name sizes that divide the {ranks} {unit} of this machine, and {size} does not; "
                f"choose from {', '.join(map(str, possible))}"
            )
    if not gpus.devices and ranks > len(cores.in_order):
        raise ValueError(
            f"split ({sizes_text}) gives each CPU rank cores of its own, and there are {len(cores.in_order)} for {ranks} ranks; "
            f"use --ranks {len(cores.in_order)}"
        )
    if max(ranks, 0 if gpus.devices else len(cores.in_order)) > MOST_DEVICES:
        raise ValueError(
            f"split ({sizes_text}) knows machines of up to {MOST_DEVICES} GPUs or cores; run one worker here"
        )


def _division(host: str, gpus: Gpus, ranks: int, size: int, least_ranks: int, first: int, cores: Cores) -> Division:
    members = range(first, first + size)
    count, ordered = len(cores.in_order), cores.in_order
    own_cores = ordered[first * count // ranks : (first + size) * count // ranks]
    if gpus.devices:
        uuids = gpus.uuids
        devices = tuple(uuids[index] for index in members)
        shared_link_devices = tuple(uuids[index] for index in links.crossed_by_gpus(members, gpus))
    else:
        devices = tuple(f"cpu{core}" for core in own_cores)
        crossed = links.crossed_by_cores(size, own_cores, ordered, cores.numa_nodes)
        shared_link_devices = tuple(f"cpu{core}" for core in crossed)
    host_partition = HostPartition(
        host=host,
        devices=devices,
        shared_link_devices=shared_link_devices,
        least_ranks=least_ranks,
        fraction=size / ranks,
    )
    # With more GPUs than cores some worker would get no core, so that none is bound.
    bound_cores = frozenset(own_cores if count >= ranks else ordered)
    return Division(f"{size}x{first // size}", size, host_partition, devices if gpus.devices else (), bound_cores)
