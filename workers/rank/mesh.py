"""Process group of a trial's ranks, and reductions whose results all ranks share.

On one host ranks rendezvous at a file in the trial directory; otherwise as the environment says (`env://`), like torchrun's.
"""

import datetime
import os
from pathlib import Path

import torch
import torch.distributed as dist

from shardtune.workers.rank.rank_context import RankContext

_TIMEOUT = datetime.timedelta(minutes=10)
"""Timeout of a collective of all ranks. It is longer than any single step with compilation, because the agent ends hanging
runs by deadlines of its own. Groups of a mesh do not inherit it: they have torch's 30 minutes for mixed backends (2.11 to 2.15)."""


_GIVEN_STORE = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE")
"""Environment variables that a launcher sets if it serves the store through which the ranks find each other."""


def use_loopback(place: RankContext) -> None:
    """Make gloo use the loopback interface if all ranks run on one host. For several hosts the launcher has named the
    interface already."""
    # gloo would otherwise resolve the host name, which need not be resolvable.
    if place.local_world_size == place.world_size:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def join(place: RankContext, trial_dir: Path) -> None:
    """Initialise torch.distributed for this rank: gloo for CPU tensors, NCCL for GPU tensors."""
    use_loopback(place)
    backend = "cpu:gloo,cuda:nccl" if place.is_cuda else "gloo"
    is_alone = place.local_world_size == place.world_size
    if is_alone and not any(name in os.environ for name in _GIVEN_STORE):
        store = dist.FileStore(  # type: ignore[attr-defined]
            str(trial_dir / "store"), place.world_size
        )
        dist.init_process_group(
            backend,
            store=store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=_TIMEOUT,
            device_id=bound_device(place),
        )
    else:
        dist.init_process_group(backend, timeout=_TIMEOUT, device_id=bound_device(place))


def bound_device(place: RankContext) -> torch.device | None:
    """Device to which the process group is bound, so that NCCL starts at once and can split communicators. None on CPU
    ranks, or if there is only one rank."""
    # ncclCommSplit of a communicator with one rank ended in CUDA error 600 (DeepSpeed issue 8248, mended there likewise).
    return place.device if place.is_cuda and place.world_size > 1 else None


def largest(values: list[float], place: RankContext) -> list[float]:
    """Element-wise maximum of the values over all ranks."""
    tensor = torch.tensor(values, dtype=torch.float64, device=place.device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return [float(value) for value in tensor.tolist()]


def mean(tensor: torch.Tensor, place: RankContext) -> list[float]:
    """Element-wise mean of the values over all ranks, computed in fp64."""
    total = tensor.to(torch.float64)
    dist.all_reduce(total)
    return [float(value) for value in (total / place.world_size).tolist()]
