"""Layouts of a plan: configurations worth a prediction, on each number of GPUs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.strategies import (
    Checkpointing,
    DdpConfig,
    Fsdp2Config,
    Strategy,
    TrialConfig,
    ZeroConfig,
    pipeline_parallel,
    tensor_parallel,
)
from shardtune.tuner.prediction.candidates import Candidates
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.model_shape import ModelShape

_MICRO_BATCHES = (1, 2, 4, 8, 16)
_CHECKPOINTING: tuple[Checkpointing, ...] = ("none", "selective", "full")
_TENSOR = (1, 2, 4, 8)
_STAGES = ((20e9, (1,)), (150e9, (1, 4)), (float("inf"), (1, 4, 8)))
"""Numbers of pipeline stages to try, as pairs (maximum number of the model's parameters, numbers of stages). Small
models gain nothing from stages, and the prediction of each stage takes time."""
_EXPERT_RANKS = (8, 32, 64)
_NEAR = 1.25
"""Largest ratio between a configuration's global batch and the requested one, in either direction."""


@dataclass(frozen=True)
class PlanLayouts:
    """Configurations on all numbers of GPUs that a plan considers, also as arrays for the predictor."""

    configs: tuple[TrialConfig, ...]
    gpus: NDArray[np.int64]
    """Number of GPUs of each configuration."""
    candidates: Candidates
    of_study: NDArray[np.bool_] | None = None
    """Whether each configuration is one that a study measured on fewer GPUs, or on as many. None if no study was; then
    no configuration is preferred."""

    @property
    def global_batches(self) -> NDArray[np.float64]:
        """Samples per step of each configuration."""
        c = self.candidates
        samples: NDArray[np.float64] = c.accumulation * c.micro_batch * self.gpus / (c.tensor * c.stages * c.context)
        return samples


def plan_layouts(
    shape: ModelShape, counts: Sequence[int], gpus_per_node: int, sequence: int, global_batch: int
) -> PlanLayouts | None:
    """Configurations on each number of GPUs whose step has about as many samples as requested; None if there is none on
    any number of GPUs."""
    configs, gpus, accumulation, parts = list[TrialConfig](), list[int](), list[int](), list[Candidates]()
    for count in counts:
        chosen = list(_with_batch(shape, count, min(gpus_per_node, count), global_batch))
        if chosen:
            configs += [config for config, _ in chosen]
            gpus += [count] * len(chosen)
            accumulation += [micro_batches for _, micro_batches in chosen]
            parts.append(from_configs([config for config, _ in chosen], sequence, count, global_batch))
    if not parts:
        return None
    joined = join(parts).with_values(accumulation=np.array(accumulation))
    return PlanLayouts(tuple(configs), np.array(gpus), joined)


def is_near(samples: int, global_batch: int) -> bool:
    """Whether a number of samples per step is near enough to the requested one to count as the same training."""
    return 1 / _NEAR <= samples / global_batch <= _NEAR


def _with_batch(shape: ModelShape, count: int, node: int, global_batch: int) -> Iterator[tuple[TrialConfig, int]]:
    """Configurations with the number of micro batches that comes closest to the global batch."""
    for strategy in _strategies(shape, count, node):
        groups = count // strategy.model_parallel
        for micro_batch in _MICRO_BATCHES:
            micro_batches = max(1, round(global_batch / (micro_batch * groups)))
            samples = micro_batches * micro_batch * groups
            # A pipeline with fewer micro batches than stages mostly idles.
            if not is_near(samples, global_batch) or micro_batches < strategy.stages:
                continue
            for checkpointing in _CHECKPOINTING:
                config = TrialConfig(strategy=strategy, micro_batch=micro_batch, activation_checkpointing=checkpointing)
                yield config, micro_batches


def _strategies(shape: ModelShape, count: int, node: int) -> Iterator[Strategy]:
    yield DdpConfig()
    yield ZeroConfig(stage=1)
    if count > 1:
        yield ZeroConfig(stage=2)
    for stages in next(numbers for most, numbers in _STAGES if shape.parameters <= most):
        for tensor in _TENSOR:
            if tensor > node or count % (tensor * stages) or not _divides(shape, tensor, stages):
                continue
            ranks = count // (tensor * stages)
            for shard in {ranks, max(node // tensor, 1), min(ranks, 64)}:
                if shard <= ranks and ranks % shard == 0:
                    yield from _fully_sharded(shape, shard, ranks // shard, tensor, stages)


def _fully_sharded(shape: ModelShape, shard: int, copies: int, tensor: int, stages: int) -> Iterator[Strategy]:
    mesh = {"dp_shard": shard, "dp_replicate": copies, "tensor_parallel": tensor, "pipeline_parallel": stages}
    # In a pipeline, gathering for each micro batch costs more than it saves.
    resharding = stages == 1
    yield Fsdp2Config(**mesh, reshard_after_forward=resharding)
    if resharding:
        yield Fsdp2Config(**mesh, reshard_after_forward=False)
    for experts in _EXPERT_RANKS if shape.experts > 1 and tensor == stages == 1 else ():
        if shard % experts == 0 and shape.experts % experts == 0:
            yield Fsdp2Config(**mesh, expert_parallel=experts)


def _divides(shape: ModelShape, tensor: int, stages: int) -> bool:
    try:
        tensor_parallel.check_widths(tensor, 1, *shape.tensor)
        pipeline_parallel.check_blocks(stages, *shape.pipeline, 1)
    except ValueError:
        return False
    return True


def join(parts: Sequence[Candidates]) -> Candidates:
    """Join candidates, which may be on different numbers of GPUs, to one table."""
    # Once: a size is that of the largest of all fields.
    sizes = [part.size for part in parts]
    return Candidates(
        **{
            field.name: np.concatenate(
                [np.broadcast_to(getattr(part, field.name), size) for part, size in zip(parts, sizes, strict=True)]
            )
            for field in fields(Candidates)
        }
    )
