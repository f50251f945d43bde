"""Candidate values, derived from the model, the workload and the cluster: never fixed numbers where the model's size decides."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import context_parallel, expert_parallel, pipeline_parallel, tensor_parallel
from shardtune.api_schemas.strategies.pipeline_schedules import FACTS, SCHEDULES, PipelineSchedule, obstacle
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.training.workload import Workload, gradient_accumulation

T = TypeVar("T")


def divisors(number: int) -> tuple[int, ...]:
    """All divisors in rising order."""
    low = [k for k in range(1, int(number**0.5) + 1) if number % k == 0]
    return tuple(sorted({*low, *(number // k for k in low)}))


@dataclass(frozen=True)
class Domains:
    """Values worth trying for each knob of one study."""

    workload: Workload
    cluster: Cluster
    model_summary: ModelSummary
    cores: int | None = None
    """Of each node, where a worker has said."""

    @property
    def world(self) -> int:
        """Ranks of every trial, over which model states are spread; those that share samples are counted one by one."""
        return self.cluster.world_size

    @property
    def on_gpu(self) -> bool:
        """False: gloo CPU ranks, where overlap, pinning and prefetch depth do nothing."""
        return self.cluster.device == "cuda"

    @cached_property
    def context_parallel(self) -> tuple[tuple[int, ...], str | None]:
        """Ranks that may share a sample, and why no others may."""
        return context_parallel.sizes(self.cluster, self.workload, self.model_summary)

    def tensor_parallel(self, context: int) -> tuple[tuple[int, ...], str | None]:
        """Ranks that may split a model where so many share a sequence, and why no others may."""
        return tensor_parallel.sizes(context, self.cluster, self.workload, self.model_summary)

    def pipeline_parallel(self, sharing: int) -> tuple[tuple[int, ...], str | None]:
        """Stages that a model may have where so many ranks share samples in each of them, and why it may have no others."""

        def check(stages: int) -> None:
            pipeline_parallel.check_blocks(stages, self.model_summary.pipeline_blocks, self.model_summary.pipeline_note)
            pipeline_parallel.check_ranks(stages, self.world // sharing)
            samples = gradient_accumulation(self.workload.global_batch, 1, self.world // (sharing * stages))
            pipeline_parallel.check(stages, samples)

        return context_parallel.divisors(self.world, check)

    def pipeline_schedules(self, sharing: int, stages: int) -> tuple[PipelineSchedule, ...]:
        """Those under which the ranks of a pipeline have blocks enough, and some micro batch divides a step."""
        enough = (self.model_summary.pipeline_blocks or 1) >= 2 * stages
        several = {name for name in SCHEDULES if FACTS[name].is_interleaved}
        return tuple(
            name
            for name in SCHEDULES
            if name not in several or (enough and self.micro_batches(sharing * stages, stages, name))
        )

    def virtual_stages(self, stages: int, schedule: str) -> tuple[int, ...]:
        """Numbers of stages on each rank: where there are several, those that spread the blocks evenly, else 2."""
        if not FACTS[schedule].is_interleaved:
            return (1,)
        if FACTS[schedule].is_v:
            return (2,)
        blocks = self.model_summary.pipeline_blocks or 1
        even = (k for k in range(2, blocks // stages + 1) if blocks % (k * stages) == 0)
        return tuple(even) or (2,)

    def expert_parallel(self, split: int, tensor: int) -> tuple[tuple[int, ...], str | None]:
        """Ranks that may divide experts where so many split a model, by its blocks' widths `tensor` of them, and why no others may."""

        def check(size: int) -> None:
            known = self.model_summary.experts, self.model_summary.expert_width, self.model_summary.expert_note
            expert_parallel.check_experts(size, size, *known)
            expert_parallel.check(size, self.world // split, tensor)

        return context_parallel.divisors(self.world, check)

    def expert_shards(self, experts: int, shards: tuple[int, ...]) -> tuple[int, ...]:
        """Of so many ranks that shard, those over which so many can divide experts."""
        if experts == 1:
            return shards
        known = self.model_summary.experts or 1, self.model_summary.expert_width or 1
        ranks = (shard for shard in shards if shard % experts == 0)
        return tuple(k for k in ranks if expert_parallel.sharded_axis(experts, k, *known) is not None)

    def micro_batches(self, sharing: int, stages: int = 1, schedule: str = "1f1b") -> tuple[int, ...]:
        """Every micro batch that divides one rank's share of the global batch, where so many ranks share samples, and leaves one
        for each of so many stages, in as many rounds as their schedule wants.

        Raises:
            ValueError: the ranks do not divide the global batch.
        """
        sizes = divisors(gradient_accumulation(self.workload.global_batch, 1, self.world // sharing))
        steps = ((size, self.accumulation(size, sharing)) for size in sizes)
        return tuple(size for size, count in steps if count >= stages and obstacle(schedule, stages, count) is None)

    def accumulation(self, micro_batch: int, sharing: int) -> int:
        """Micro batches per step, at least 1 (a foreign micro batch need not divide)."""
        return max(1, self.workload.global_batch * sharing // (micro_batch * self.world))

    @property
    def checkpoint_every(self) -> tuple[int, ...]:
        """Every block, every 2nd, 3rd and 4th, where there are as many."""
        return tuple(k for k in (1, 2, 3, 4) if k == 1 or k <= len(self.model_summary.blocks))

    @property
    def threads(self) -> tuple[int, ...]:
        """Of CPU ranks: a rank's share of the cores (0), or half of it, where two threads of a core are in each other's way."""
        share = 0 if self.on_gpu else (self.cores or 0) // self.cluster.gpus_per_node
        return (0, share // 2) if share > 1 else (0,)

    def reshard_groups(self, shard: int) -> tuple[int, ...]:
        """Ranks that share one whole copy between forward and backward; first those that fit into a host, whose links are faster."""
        host = self.cluster.gpus_per_node
        return tuple(sorted(divisors(shard)[1:-1], key=lambda size: host % size != 0))

    def sizes(self, make: Callable[["Domains"], T]) -> T:
        """A backend's own candidates, made once."""
        if make not in self._made:
            self._made[make] = make(self)
        made: T = self._made[make]
        return made

    @cached_property
    def _made(self) -> dict[Any, Any]:
        return {}
