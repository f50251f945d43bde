"""Sizes: one configuration on one number of GPUs, as predicted and as measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from shardtune.api_schemas.base import GIB, Bound
from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation, from_rows
from shardtune.tuner.prediction.evaluation import Evaluation
from shardtune.tuner.prediction.footprint import MemoryTable, peak_memory
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network, Rates
from shardtune.tuner.prediction.throughput import StepTable, bounding_resources, step_times

_LAYOUT = (
    "backend",
    "stage",
    "tensor",
    "context",
    "stages",
    "virtual",
    "experts",
    "micro_batch",
    "checkpointing",
    "compiled",
)
"""Fields of a candidate that make up its layout: they stay the same while only the number of data-parallel ranks
changes."""


@dataclass(frozen=True)
class PredictedSize:
    """Prediction of one configuration on one number of GPUs."""

    gpus: int
    gpus_per_node: int
    layout: Mapping[str, float]
    """Values of the fields that make up the layout, which leaves out the number of data-parallel ranks."""
    shards_everywhere: bool
    """Whether model states are sharded over all data-parallel ranks, so that the shard group grows with the GPUs."""
    shard_ranks: int
    """Number of ranks that share one copy of the states that the backend shards."""
    seconds: float
    """Predicted seconds of a step."""
    communication_s: float
    """Predicted seconds of a step in which the GPU waits for communication and computes nothing."""
    tokens_per_gpu: float
    """Number of tokens that each GPU trains on in a step."""
    memory_gib: float
    """Predicted peak memory of tensors in GiB (torch's `max_memory_allocated`), on the GPU that needs most."""
    bound_by: Bound
    """Resource that takes the largest part of the predicted step."""
    uses_uplinks: bool = False
    """Whether the GPUs are below several leaf switches that are oversubscribed."""
    slowness_if_scattered: float = 1.0
    """Factor by which the predicted step is longer where neighbouring nodes are below different leaf switches."""
    gpu: str = ""
    """Kind of the GPUs; empty where all sizes that are compared have the same kind."""

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Predicted tokens per second and GPU."""
        return self.tokens_per_gpu / self.seconds

    @property
    def communication_fraction(self) -> float:
        """Predicted fraction of a step in which the GPU waits for communication."""
        return self.communication_s / self.seconds

    @property
    def spans_nodes(self) -> bool:
        """Whether the GPUs are on more than one node."""
        return self.gpus > self.gpus_per_node

    @property
    def has_gradient_exchange(self) -> bool:
        """Whether several ranks hold the same part of the model, or shards of it, and so exchange its gradients."""
        return self.gpus > self.layout["tensor"] * self.layout["stages"]

    def has_layout_of(self, other: "PredictedSize") -> bool:
        """Whether two predicted sizes (each a configuration on some number of GPUs) differ only in the number of
        data-parallel ranks."""
        # On few GPUs a group over all ranks and one of a fixed size are the same: within a node, or where a single group of
        # that size has all ranks.
        same_group = (
            self.shards_everywhere == other.shards_everywhere
            or not (self.spans_nodes and other.spans_nodes)
            or self.shard_ranks == other.shard_ranks
        )
        return same_group and self.layout_values == other.layout_values

    @cached_property
    def layout_values(self) -> tuple[float, ...]:
        """Values of the layout in a fixed order, to compare and look up layouts; cached, as a plan does so a million
        times."""
        return tuple(self.layout[name] for name in self._layout_names)

    @cached_property
    def _layout_names(self) -> tuple[str, ...]:
        return tuple(sorted(self.layout))

    def distance(self, other: "PredictedSize") -> float:
        """Distance of two layouts, summed over all fields: for numbers, how many doublings lie between them (8 and 32
        are two apart); for other values, one if they differ."""
        between = _layout_distance(self._layout_names, self.layout_values, other.layout_values)
        return float(self.shards_everywhere != other.shards_everywhere) + between


_COUNTED = ("tensor", "context", "stages", "virtual", "experts", "micro_batch")


@lru_cache(maxsize=1 << 16)
def _layout_distance(names: tuple[str, ...], first: tuple[float, ...], second: tuple[float, ...]) -> float:
    """Distance of two layouts in doublings, summed over all fields (8 and 32 ranks are two doublings apart). Cached, as
    a plan compares the same layouts for each number of GPUs."""
    total = 0.0
    for name, mine, theirs in zip(names, first, second, strict=True):
        if mine != theirs:
            total += abs(math.log2(mine / theirs)) if min(mine, theirs) >= 1 and name in _COUNTED else 1.0
    return total


@dataclass(frozen=True)
class MeasuredSize:
    """One configuration that was measured on one number of GPUs, with its prediction."""

    predicted: PredictedSize
    seconds: float
    """Measured seconds of a step."""
    memory_gib: float | None = None
    """Measured peak of the tensors in GiB; None where it was not measured."""

    @classmethod
    def at_speed(
        cls, predicted: PredictedSize, tokens_per_s_per_gpu: float, memory_gib: float | None = None
    ) -> "MeasuredSize":
        """Create a measured size (a configuration on one number of GPUs) from a speed in tokens per second and GPU."""
        return cls(predicted, predicted.tokens_per_gpu / tokens_per_s_per_gpu, memory_gib)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Measured tokens per second and GPU."""
        return self.predicted.tokens_per_gpu / self.seconds

    def is_of(self, size: PredictedSize) -> bool:
        """Whether this measurement is of a configuration on the same number of GPUs, with the same groups and as many
        tokens in a step."""
        mine = self.predicted
        return (
            (mine.gpus, mine.shard_ranks) == (size.gpus, size.shard_ranks)
            and math.isclose(mine.tokens_per_gpu, size.tokens_per_gpu)
            and mine.has_layout_of(size)
        )

    @property
    def slowness(self) -> float:
        """Logarithm of measured over predicted step time."""
        return math.log(self.seconds / self.predicted.seconds)


def of_candidates(
    candidates: Candidates,
    step: StepTable,
    memory: MemoryTable,
    gpus_per_node: int,
    leaf_gpus: float = math.inf,
    slowness_if_scattered: Array | float = 1.0,
) -> list[PredictedSize]:
    """Convert candidates with their predicted step times and memory to one `PredictedSize` each. `leaf_gpus`: number of
    GPUs below one oversubscribed leaf switch. `slowness_if_scattered`: factor by which steps are longer where
    neighbouring nodes are below different leaf switches."""
    count = candidates.size
    arrays = {name: np.broadcast_to(getattr(candidates, name), count) for name in _LAYOUT}
    gpus = np.broadcast_to(candidates.ranks * candidates.stages, count)
    replicate = np.broadcast_to(candidates.replicate, count)
    shard = np.broadcast_to(candidates.shard, count)
    tokens = np.broadcast_to(candidates.tokens * candidates.accumulation / candidates.stages, count)
    seconds = np.broadcast_to(step.total, count)
    exposed = np.broadcast_to(step.parts["communication"], count)
    allocated = np.broadcast_to(memory.allocated, count) / GIB
    bounds = bounding_resources(step.parts, np.broadcast_to(step.network_bound, count))
    scattered = np.broadcast_to(slowness_if_scattered, count)
    return [
        PredictedSize(
            gpus=round(float(gpus[index])),
            gpus_per_node=gpus_per_node,
            layout={name: float(values[index]) for name, values in arrays.items()},
            shards_everywhere=bool(replicate[index] <= 1),
            shard_ranks=round(float(shard[index])),
            seconds=float(seconds[index]),
            communication_s=float(exposed[index]),
            tokens_per_gpu=float(tokens[index]),
            memory_gib=float(allocated[index]),
            bound_by=bounds[index],
            uses_uplinks=bool(gpus[index] > leaf_gpus),
            slowness_if_scattered=float(scattered[index]),
        )
        for index in range(count)
    ]


def of_evaluation(evaluation: Evaluation, gpus_per_node: int) -> list[PredictedSize]:
    """Convert the candidates of an evaluation to one `PredictedSize` each.

    Raises:
        ValueError: the evaluation predicts no speed.
    """
    if evaluation.step is None:
        raise ValueError("evaluation (no speed) needs the hardware's rates; measure them")
    return of_candidates(
        evaluation.candidates,
        evaluation.step,
        evaluation.memory,
        gpus_per_node,
        evaluation.leaf_gpus,
        evaluation.slowness_if_scattered,
    )


def predict_sizes(
    shape: ModelShape,
    rows: Sequence[dict[str, float]],
    dtypes: Dtypes,
    impl: Implementation,
    rates: Rates,
    network: Network,
) -> list[PredictedSize]:
    """Predict configurations given as fields of candidates, and return one `PredictedSize` for each row."""
    candidates = from_rows(rows)
    step = step_times(shape, candidates, dtypes, impl, rates, network)
    return of_candidates(candidates, step, peak_memory(shape, candidates, dtypes, impl), network.gpus_per_node)
