"""Ranks that compare their replicas of the weights after each step, also with random numbers that differ among them."""

import os
import sys
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config
from shardtune.workers.rank import main
from shardtune.workers.rank.strategies.ddp import DdpTrainer
from shardtune.workers.rank.strategies.fsdp1 import Fsdp1Trainer
from shardtune.workers.rank.strategies.fsdp2 import Fsdp2Trainer
from shardtune.workers.rank.strategies.optimizers import adamw_bf16
from tests.support.processes import preloaded_forks

HYBRID1 = Fsdp1Config(dp_shard=2, dp_replicate=2, sharding_strategy="HYBRID_SHARD")
HYBRID2 = Fsdp2Config(dp_shard=2, dp_replicate=2)


class DifferentReplicas(Exception):
    """Replicas of the weights differ."""


def require_equal(weights: list[torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """Compare this rank's weights with those of the other ranks of a group, bit by bit."""
    own = torch.cat([weight.detach().flatten() for weight in weights]).view(torch.int16).to(torch.int32)
    largest, smallest = own.clone(), own.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX, group)
    dist.all_reduce(smallest, dist.ReduceOp.MIN, group)
    differing = int((largest != smallest).sum())
    if differing:
        raise DifferentReplicas(f"{differing} of {own.numel()} weights differ between replicas")


class ComparesDdp(DdpTrainer):
    def optimizer_step(self) -> torch.Tensor:
        norm = super().optimizer_step()
        require_equal(list(self._parameters), None)
        return norm


class ComparesFsdp1(Fsdp1Trainer):
    def optimizer_step(self) -> torch.Tensor:
        norm = super().optimizer_step()
        require_equal(list(self._parameters), self._fsdp._inter_node_pg)  # type: ignore[attr-defined]
        return norm


class ComparesFsdp2(Fsdp2Trainer):
    def optimizer_step(self) -> torch.Tensor:
        norm = super().optimizer_step()
        shards = [cast(DTensor, parameter) for parameter in self._parameters]
        require_equal([shard.to_local() for shard in shards], shards[0].device_mesh["dp_replicate"].get_group())
        return norm


TRAINERS = {
    "ddp": (2, lambda model, setting: ComparesDdp(model, setting, DdpConfig())),
    "fsdp1, hybrid": (4, lambda model, setting: ComparesFsdp1(model, setting, HYBRID1)),
    "fsdp2, hybrid": (4, lambda model, setting: ComparesFsdp2(model, setting, HYBRID2)),
}
RANKS = {name: ranks for name, (ranks, _) in TRAINERS.items()}


def run_ranks(name: str, folder: Path, *, own_numbers: bool = False) -> None:
    """Run all ranks of a trial directory. `own_numbers`: each rank draws its own random numbers, as it would by torch's
    default generator."""
    preloaded_forks.ranks(_rank, name, folder, own_numbers, logs=folder, count=RANKS[name])


def _rank(name: str, folder: Path, own_numbers: bool) -> None:
    if own_numbers:
        adamw_bf16._part = lambda _parameter, _shard: (dist.get_rank(),)
    main.run(folder, TRAINERS[name][1])
    # As the fork server's ranks end: gloo has hung in what the interpreter winds down.
    sys.stderr.flush()
    os._exit(0)
