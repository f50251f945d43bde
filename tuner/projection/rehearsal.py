"""Plan of a rehearsal and its result: a few blocks of the model on the fullest ranks, and a straight line through them.

Blocks repeat, so that bytes are linear in their number as soon as there are more of them than a strategy gathers ahead.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.strategies import TrialConfig, pipeline_parallel
from shardtune.api_schemas.strategies.pipeline_parallel import blocks_of_stages
from shardtune.api_schemas.strategies.pipeline_schedules import FACTS, stages_of_rank
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.trials import rehearsal_support
from shardtune.api_schemas.trials.leases import RehearsalTask, TrialTask
from shardtune.api_schemas.trials.rehearsals import Rehearsal, RehearsalProblem, RehearsedRank

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_DEPTHS = (4, 8)
"""Numbers of transformer blocks per rank for which a rehearsal measures the memory peak, to extrapolate to the full
model. Two blocks would be too few: the peak then lies at another moment of the step, and the line is too steep, by 12 %
at ten blocks of a pipeline stage of a 70B."""
NOTES = (
    "bytes of tensors alone: no CUDA context, no buffers of NCCL, no fragmentation, no work space of kernels; nothing was timed",
)


class _Line(NamedTuple):
    """Straight line through a rank's peak bytes at two numbers of blocks."""

    start: float
    slope: float

    @classmethod
    def through(cls, seen: Sequence[RehearsedRank]) -> "_Line":
        few, many = seen[0], seen[-1]
        slope = 0.0 if few.blocks == many.blocks else (many.peak_bytes - few.peak_bytes) / (many.blocks - few.blocks)
        return cls(few.peak_bytes - slope * few.blocks, slope)

    def at(self, blocks: int) -> float:
        return self.start + self.slope * blocks


def tasks(trial: TrialTask) -> list[RehearsalTask]:
    """Plan the processes that rehearse a trial (step it without GPUs, on tensors without values): one for each chosen
    rank and depth. The chosen ranks are those that need most memory. Each is stepped with the model's own number of
    blocks, or with two smaller numbers, from which its memory is extrapolated on a straight line.

    Raises:
        ValueError: the configuration contradicts the cluster or the workload, or the model's depth is unknown.
    """
    ranks, stages = trial.cluster.world_size, trial.config.strategy.stages
    if stages > 1:
        pipeline_parallel.check_ranks(stages, ranks)
    accumulation = trial.config.accumulation(trial.workload.global_batch, ranks)
    trial.config.strategy.check_cluster(trial.cluster, trial.workload.precision, accumulation)
    # Here, since a cut model has as many blocks as its stages need.
    virtual = getattr(trial.config.strategy, "pipeline_virtual_stages", 1)
    pipeline_parallel.check_blocks(stages, layers_of(trial.model)[1], None, virtual)
    micro_batches = _micro_batches(trial.config, accumulation)
    chosen = [0] if stages == 1 else [0, ranks - ranks // stages]
    return [
        RehearsalTask(trial=_at_depth(trial, depth * stages), rank=rank, micro_batches=micro_batches)
        for rank in chosen
        for depth in _depths(trial)
    ] or [RehearsalTask(trial=trial, rank=rank, micro_batches=micro_batches) for rank in chosen]


def plan(trial: TrialTask) -> list[RehearsalTask] | RehearsalProblem:
    """Plan the processes that rehearse a trial, or return the reason why it cannot train or cannot be rehearsed, which
    is known without a process."""
    try:
        layers_of(trial.model)
    except ValueError as error:
        return RehearsalProblem(code="unsupported", field="model", value=trial.model.name, message=str(error))
    try:
        planned = tasks(trial)
    except ValueError as error:
        return RehearsalProblem.misfit(str(error))
    return rehearsal_support.obstacle(trial) or planned


def combine(
    trial: TrialTask,
    seen: Sequence[RehearsedRank],
    problem: RehearsalProblem | None,
    predicted_gib: float | None,
    available_gib: float | None = None,
) -> Rehearsal:
    """Combine what the processes of a rehearsal measured into its result; if there is a `problem`, the result has no
    measurements.

    `available_gib`: memory that a GPU may use, which the peak must not exceed; if None, the peak is compared with no
    limit.
    """
    common: dict[str, Any] = {
        "cluster": trial.cluster,
        "ranks": trial.cluster.world_size,
        "global_batch": trial.workload.global_batch,
        "config": trial.config,
        "description": trial.config.describe(),
        "predicted_gib": predicted_gib,
    }
    if problem is not None:
        return Rehearsal(**common, builds=False, problem=problem)
    by_rank = {one.rank: [other for other in seen if other.rank == one.rank] for one in seen}
    peak = max(_Line.through(runs).at(_own_blocks(trial, rank, runs)) for rank, runs in by_rank.items()) / GIB
    depths = sorted({one.blocks for one in seen})
    return Rehearsal(
        **common,
        builds=True,
        problem=None if available_gib is None or peak <= available_gib else _over_memory(trial, peak, available_gib),
        allocated_gib=peak,
        available_gib=available_gib,
        above_prediction=None if not predicted_gib else peak / predicted_gib - 1,
        extended_from=tuple(depths) if len(depths) > 1 else (),
        process_groups=max(one.process_groups for one in seen),
        set_up_s=max(one.set_up_s for one in seen),
        seen=tuple(seen),
        notes=NOTES,
    )


def _over_memory(trial: TrialTask, peak_gib: float, available_gib: float) -> RehearsalProblem:
    memory_gib = trial.cluster.memory_gib
    return RehearsalProblem(
        code="over_memory",
        field="cluster.memory_gib",
        value=f"{memory_gib:g}",
        message=(
            f"cluster.memory_gib ({memory_gib:g}), of which {memory(available_gib)} may be used, is less than the "
            f"{memory(peak_gib)} of the rehearsed tensors; split the model over more ranks, checkpoint activations, or "
            "name GPUs with more memory"
        ),
    )


def layers_of(model: ModelSpec) -> tuple[str, int]:
    """Key and number of the repeated blocks in a model's configuration.

    Raises:
        ValueError: no known key of the configuration states the number of blocks.
    """
    for key in _LAYERS:
        value = model.config.get(key)
        if isinstance(value, int) and value > 0:
            return key, value
    raise ValueError(
        f"model ({model.name}) must state its number of blocks as one of {', '.join(_LAYERS)}, so that a few can be rehearsed"
    )


def _depths(trial: TrialTask) -> tuple[int, ...]:
    """Numbers of blocks per rank with which to rehearse a trial (step it without GPUs); empty where the model has no
    more blocks than that and is rehearsed whole."""
    config = trial.config
    stages, virtual = config.strategy.stages, getattr(config.strategy, "pipeline_virtual_stages", 1)
    checkpoint_every = 1 if config.activation_checkpointing == "none" else config.checkpoint_every
    # Each unit of FSDP, each checkpoint and each stage of a rank has the same number of blocks.
    unit = math.lcm(getattr(config.strategy, "blocks_per_unit", 1), checkpoint_every) * virtual
    depths = tuple(unit * depth for depth in _DEPTHS)
    _, layers = layers_of(trial.model)
    return () if depths[-1] * stages >= layers else depths


def _at_depth(trial: TrialTask, layers: int) -> TrialTask:
    key, _ = layers_of(trial.model)
    config = {**trial.model.config, key: layers}
    types = config.get("layer_types")
    if isinstance(types, list | tuple):
        config["layer_types"] = list(types[:layers])
    return trial.model_copy(update={"model": trial.model.model_copy(update={"config": config})})


def _own_blocks(trial: TrialTask, rank: int, runs: Sequence[RehearsedRank]) -> int:
    """Number of blocks that a rank has in the full model, to which its memory is extrapolated."""
    strategy = trial.config.strategy
    if len(runs) == 1:
        return runs[0].blocks
    _, layers = layers_of(trial.model)
    if strategy.stages == 1:
        return layers
    virtual, schedule = getattr(strategy, "pipeline_virtual_stages", 1), getattr(strategy, "pipeline_schedule", "1f1b")
    stage_rank = rank // (trial.cluster.world_size // strategy.stages)
    sizes = blocks_of_stages(layers, strategy.stages * virtual)
    return sum(sizes[i] for i in stages_of_rank(stage_rank, strategy.stages, virtual, FACTS[schedule].is_v))


def _micro_batches(config: TrialConfig, accumulation: int) -> int:
    """Number of micro batches after which a step has reached its memory peak: as many as are in flight at once, and one
    more, which adds to existing gradients."""
    stages = config.strategy.stages
    if stages == 1:
        return min(accumulation, 2)
    schedule = getattr(config.strategy, "pipeline_schedule", "1f1b")
    if schedule == "1f1b":
        return min(accumulation, stages + 1)
    # Rounds of other schedules have a multiple of the stages; GPipe keeps all micro batches.
    return accumulation if schedule == "gpipe" or accumulation % stages else min(accumulation, 2 * stages)
