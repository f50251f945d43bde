"""`python -m tests.rank.helpers.communicators`: four gloo ranks build and train each strategy with few and with more blocks.

Rank 0 prints how many process groups each made, as JSON.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from deepspeed.utils import groups
from torch.distributed import distributed_c10d

from shardtune.workers.rank import mesh
from shardtune.workers.rank.device import CpuDevice
from shardtune.workers.rank.model import data
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.strategies.base import TrainingSetup
from shardtune.workers.rank.training import step as steps
from shardtune.workers.rank.training import wrap
from tests.support.ranks.tiny_tasks import LLAMA, tiny_task
from tests.support.ranks.torch_features import OWN_REDUCE_SCATTER

RANKS = 4
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    "zero1": {"kind": "zero", "stage": 1},
    "zero2": {"kind": "zero", "stage": 2},
    "zero3": {"kind": "zero", "stage": 3},
    "hpz": {"kind": "zero", "stage": 3, "zero_hpz_partition_size": 2},
    "fsdp1": {"kind": "fsdp1", "dp_shard": 4},
    "fsdp1-hybrid": {"kind": "fsdp1", "dp_replicate": 2, "dp_shard": 2, "sharding_strategy": "HYBRID_SHARD"},
    "fsdp2": {"kind": "fsdp2", "dp_shard": 4},
    **(
        {"fsdp2-own-reduce-scatter": {"kind": "fsdp2", "dp_shard": 4, **OWN_REDUCE_SCATTER}}
        if OWN_REDUCE_SCATTER
        else {}
    ),
    "hsdp": {"kind": "fsdp2", "dp_replicate": 2, "dp_shard": 2},
    "fsdp2-groups": {"kind": "fsdp2", "dp_shard": 4, "reshard_after_forward": 2},
}
for _strategy in STRATEGIES.values():
    if _strategy["kind"] == "zero":
        # At their default DeepSpeed's buckets are 2 GiB of memory each.
        _strategy |= {"reduce_bucket_size": 50_000, "allgather_bucket_size": 50_000}


def groups_made(strategy: dict[str, Any], blocks: int, place: RankContext) -> int:
    """Count communicators by building a model of so many blocks and training one step."""
    # DeepSpeed keeps them beyond its engine, and rejects to make them again.
    groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None
    before = len(distributed_c10d._world.pg_map)
    task = tiny_task(strategy, ranks=RANKS, model=LLAMA | {"num_hidden_layers": blocks})
    step = steps.of(task.model, task.workload)
    setting = TrainingSetup.of(task, place, step.loss)
    trainer = wrap.make_trainer(step.build_model(), setting)
    for micro in range(setting.accumulation):
        samples = data.micro_batch_indices(place.rank, 1, setting.accumulation, micro)
        trainer.micro_step(step.make_batch(0, samples, place.device), last=micro == setting.accumulation - 1)
    trainer.optimizer_step()
    trainer.close()
    return len(distributed_c10d._world.pg_map) - before


def run_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    place = RankContext(rank, rank, RANKS, RANKS, CpuDevice())
    os.environ.update(
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
    )
    mesh.join(place, folder)
    counts = {
        name: [groups_made(strategy, blocks, place) for blocks in (2, 3)] for name, strategy in STRATEGIES.items()
    }
    if rank == 0:
        sys.stdout.write("\n" + json.dumps(counts) + "\n")
        sys.stdout.flush()


def main() -> int:
    pids = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(RANKS):
            pid = os.fork()
            if pid == 0:
                run_rank(rank, Path(folder))
                # Nothing is wound down: gloo's threads would wait for each other.
                os._exit(0)
            pids.append(pid)
        return max(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for pid in pids)


if __name__ == "__main__":
    sys.exit(main())
