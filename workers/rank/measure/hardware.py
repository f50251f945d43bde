"""Measurement of compute, memory and link rates while all ranks work, for the predictor: the program `hardware` of a
launch.

Every figure is the median of repetitions, taken on all ranks at once: cores, memory and links are shared as in a trial.
Over several hosts collectives are measured within each host, across hosts with one rank of each, and over all.
Rank 0 writes `hardware.json`.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from shardtune.api_schemas.machines.hardware import CollectiveTime, MeasuredHardware
from shardtune.api_schemas.strategies.rank_environment import threads_of
from shardtune.workers.rank import mesh
from shardtune.workers.rank.device import clock
from shardtune.workers.rank.measure.dtypes import native_on_cpu
from shardtune.workers.rank.process import deadline
from shardtune.workers.rank.rank_context import RankContext, device_kind

_SIZES = {"cpu": (1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 25), "cuda": (1 << 18, 1 << 21, 1 << 24, 1 << 27, 1 << 29)}
"""Sizes in bytes of the whole tensor of a measured collective. At the smallest, latency limits the collective; at the
largest, bandwidth does."""
_MATRIX = {"cpu": 1024, "cuda": 8192}
"""Edge length of the square matrices whose product is measured, by device type."""
_EMULATED = 256
"""Edge length of the square matrices for a dtype that the processor only emulates. With an edge of 1024 a product would
take seconds on such a processor."""
_COPIED = {"cpu": 1 << 26, "cuda": 1 << 30}
"""Size in bytes of the tensor copied to measure memory bandwidth; larger than the last-level cache of CPU and GPU."""
_BETWEEN = 256
"""Edge length of the square matrices that are multiplied between two collectives on CPU ranks. The product takes half a
millisecond."""
_SHORTEST_S = 1e-5
"""Smallest time in seconds that is recorded for a collective after the time of the computation around it is
subtracted."""
_LONG_S = 0.3
"""Time in seconds of one collective from which on no larger message is measured. The link's rate is known by then, and
larger messages would take minutes."""
_ENOUGH_S = 1.0
"""Seconds for which an operation is repeated (between 5 and 200 times); the measured time is the median of the
repetitions."""
Operation = Literal["all_gather", "reduce_scatter", "all_reduce"]
_OPERATIONS: tuple[Operation, ...] = ("all_gather", "reduce_scatter", "all_reduce")
_FEWEST, _MOST = 5, 200
_DEPTH = 16


def measure(place: RankContext) -> MeasuredHardware:
    """Measure all rates of this machine (such as FLOP/s, bandwidths and times of collectives) and return them as a
    report."""
    kind = place.device.type
    has_bfloat16 = place.is_cuda or "bfloat16" in native_on_cpu()
    collectives = [
        time_of_size
        for ranks, nodes, group in _groups(place)
        for name in _OPERATIONS
        for time_of_size in _curve(name, ranks, nodes, group, place)
    ]
    return MeasuredHardware(
        bf16_flops=_matmul(_MATRIX[kind] if has_bfloat16 else _EMULATED, torch.bfloat16, place),
        fp32_flops=_matmul(_MATRIX[kind], torch.float32, place),
        copy_bytes_per_s=_copy(_COPIED[kind], place),
        launch_s=_launch(place),
        host_link_bytes_per_s=_host_link(place) if place.is_cuda else None,
        collectives=tuple(collectives),
    )


def _groups(place: RankContext) -> list[tuple[int, int, dist.ProcessGroup | None]]:
    """Groups of ranks in which this rank measures collectives, each as number of ranks, number of hosts, and process
    group. All ranks create all groups, as torch demands."""
    local, world = place.local_world_size, place.world_size
    hosts = world // local
    if hosts == 1:
        return [(world, 1, None)] if world > 1 else []
    within = [list(range(first, first + local)) for first in range(0, world, local)]
    across = [list(range(first, world, local)) for first in range(local)]
    groups: list[tuple[int, int, dist.ProcessGroup | None]] = []
    for ranks, nodes, lists in ((local, 1, within), (hosts, hosts, across)):
        if ranks > 1 and ranks < world:
            group, _ = dist.new_subgroups_by_enumeration(lists)  # type: ignore[no-untyped-call]
            groups.append((ranks, nodes, group))
    return [*groups, (world, hosts, None)]


def _curve(
    name: Operation, ranks: int, nodes: int, group: dist.ProcessGroup | None, place: RankContext
) -> Iterator[CollectiveTime]:
    """Seconds that a collective takes, by size of its tensor, measured from small sizes (limited by latency) to large
    ones (limited by bandwidth)."""
    square = torch.randn(_BETWEEN, _BETWEEN)
    alone_s = 0.0 if place.is_cuda else _seconds(lambda: square @ square, place)
    for size in _SIZES[place.device.type]:
        seconds = _collective(name, size, ranks, group, place, square, alone_s)
        yield CollectiveTime(operation=name, bytes=size, seconds=seconds, ranks=ranks, nodes=nodes)
        if seconds > _LONG_S:
            return


def _seconds(work: Callable[[], object], place: RankContext) -> float:
    """Median seconds of one repetition of an operation on the rank where it is largest. All ranks repeat the operation
    equally often."""
    for _ in range(2):
        work()
    dist.barrier()
    begin = clock(place.accelerator)
    work()
    (once,) = mesh.largest([clock(place.accelerator) - begin], place)
    count = int(min(_MOST, max(_FEWEST, _ENOUGH_S / max(once, 1e-6))))
    times = []
    for _ in range(count):
        begin = clock(place.accelerator)
        work()
        times.append(clock(place.accelerator) - begin)
    (slowest,) = mesh.largest([statistics.median(times)], place)
    return slowest


def _matmul(size: int, dtype: torch.dtype, place: RankContext) -> float:
    first, second = (torch.randn(size, size, device=place.device).to(dtype) for _ in range(2))
    return 2.0 * size**3 / _seconds(lambda: first @ second, place)


def _copy(size: int, place: RankContext) -> float:
    source = torch.ones(size // 4, device=place.device)
    target = torch.empty_like(source)
    return 2.0 * size / _seconds(lambda: torch.mul(source, 2.0, out=target), place)


def _launch(place: RankContext) -> float:
    """Seconds that the host takes to launch one operator: the time of forward and backward through a deep network of
    tiny layers, divided by its number of operators."""
    layers = [nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16)) for _ in range(_DEPTH)]
    network = nn.Sequential(*layers).to(place.device)
    tiny = torch.ones(2, 16, device=place.device)

    def train() -> None:
        network(tiny).sum().backward()
        network.zero_grad(set_to_none=True)

    # Three operators forward, about twice as many backward.
    return _seconds(train, place) / (9 * _DEPTH)


def _host_link(place: RankContext) -> float:
    size = _COPIED["cpu"]
    device = torch.ones(size // 4, device=place.device)
    host = torch.empty(size // 4, pin_memory=True)
    return size / _seconds(lambda: host.copy_(device, non_blocking=True), place)


def _collective(
    name: Operation,
    size: int,
    ranks: int,
    group: dist.ProcessGroup | None,
    place: RankContext,
    square: torch.Tensor,
    alone_s: float,
) -> float:
    """Seconds that one collective adds to a matrix product of `square` that runs before it, as in a training step. On
    GPUs the collective is timed alone.

    `alone_s`: seconds of the matrix product without the collective.
    """
    count = size // 4 // ranks
    full = torch.ones(count * ranks, device=place.device)
    part = torch.ones(count, device=place.device)
    calls: dict[str, Callable[[], object]] = {
        "all_gather": lambda: dist.all_gather_into_tensor(full, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, full, group=group),
        "all_reduce": lambda: dist.all_reduce(full, group=group),
    }
    if place.is_cuda:
        return _seconds(calls[name], place)

    # On CPU ranks gloo's threads share the cores with the ranks' own. Calls back to back, without computation, take a
    # third of the time that they take in a step.
    def in_a_step() -> None:
        square @ square
        calls[name]()

    return max(_seconds(in_a_step, place) - alone_s, _SHORTEST_S)


def run(folder: Path) -> int:
    """Measure the hardware rates as one rank; environment variables say which rank this process is. Returns the exit
    code."""
    deadline.enforce(folder)
    place = RankContext.from_environment(device_kind())
    place.accelerator.use()
    # The number of threads of a trial's ranks whose configuration names none.
    torch.set_num_threads(threads_of(os.environ, len(os.sched_getaffinity(0)), place.local_world_size))
    mesh.join(place, folder)
    begin = time.monotonic()
    measured = measure(place)
    if place.rank == 0:
        (folder / "hardware.json").write_text(measured.model_dump_json())
        print(f"measured in {time.monotonic() - begin:.0f} s")
    dist.barrier()
    dist.destroy_process_group()
    return 0
