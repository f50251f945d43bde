"""Predictions of a study's configurations on its cluster, on its target, and on the sizes between."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.targets import Target
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.objective import Objective
from shardtune.tuner.objective import available_gib
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import evaluate
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.projection import gpu_kinds, rungs
from shardtune.tuner.projection.sizes import PredictedSize, of_evaluation

_EVERY_COUNT_UP_TO = 16
"""Number of nodes up to which every node count is projected, as a job may get any of them; above it, a few sizes are
enough to show the curve."""


@dataclass(frozen=True)
class FittingSize:
    """Prediction of one configuration on one cluster size, and whether it fits."""

    predicted: PredictedSize
    fits: bool
    """Whether the configuration's tensors are predicted to fit into the memory that a GPU may use."""


@dataclass(frozen=True)
class TargetSizes:
    """Study with a larger target: its model, its workload, and the cluster sizes between its own cluster and the
    target."""

    shape: ModelShape
    workload: Workload
    cluster: Cluster
    target: Target
    objective: Objective
    hardware: MeasuredHardware | None = None

    @classmethod
    def of_study(
        cls, spec: StudySpec, shape: ModelShape, cluster: Cluster, hardware: MeasuredHardware | None
    ) -> "TargetSizes":
        """Create the cluster sizes from a study's own cluster up to the larger target that the study's request
        names."""
        assert spec.target is not None
        return cls(shape, spec.workload, cluster, spec.target, spec.objective, hardware)

    @cached_property
    def there(self) -> Cluster:
        """Cluster of the target."""
        return rungs.target_cluster(self.cluster, self.target)

    @cached_property
    def has_other_gpus(self) -> bool:
        """Whether the target has another kind of GPU than the study's cluster."""
        return gpu_kinds.is_other(self.target, self.cluster)

    def between(self) -> list[Cluster]:
        """Clusters that are larger than the study's, up to the target: every number of nodes up to 16, then the powers
        of two and 1.5 times each of them (16, 24, 32, 48, 64, …), and the target's own number. All have the target's kind
        of GPU; if that is another than the study's, a cluster of the study's size is one of them."""
        powers = [1 << power for power in range(self.target.nodes.bit_length())]
        counts = {count for power in powers for count in (power, 3 * power) if count < self.target.nodes}
        counts |= set(range(1, min(_EVERY_COUNT_UP_TO + 1, self.target.nodes)))
        return [self._of(nodes) for nodes in (*sorted(counts), self.target.nodes) if self._is_larger(nodes)]

    def _of(self, nodes: int) -> Cluster:
        return self.there.model_copy(update={"nodes": nodes})

    def _is_larger(self, nodes: int) -> bool:
        ranks = self._of(nodes).world_size
        # A size whose part of the global batch is no whole number has no such step.
        smallest = self.cluster.world_size + (not self.has_other_gpus)
        return ranks >= smallest and self.workload.global_batch * ranks % self.cluster.world_size == 0

    def global_batch(self, cluster: Cluster) -> int:
        """Samples per step on a cluster, in proportion to its ranks, so that each rank has the same work."""
        return self.workload.global_batch * cluster.world_size // self.cluster.world_size

    def predict(
        self, configs: Sequence[TrialConfig], cluster: Cluster, global_batch: int | None = None
    ) -> list[FittingSize]:
        """Predict configurations on a cluster. Predictions are not calibrated: a projection uses the ratio of two of
        them, in which a correction would cancel. Without `global_batch`, each rank has the same work on all
        clusters."""
        if not configs:
            return []
        hardware = self._rates_of(cluster)
        workload = self.workload.model_copy(update={"global_batch": global_batch or self.global_batch(cluster)})
        usable = cluster.model_copy(update={"memory_gib": available_gib(cluster, self.objective)})
        candidates = from_configs(configs, workload.longest_row, cluster.world_size, workload.global_batch)
        evaluation = evaluate(self.shape, candidates, workload, usable, measured=hardware, measured_on=self.cluster)
        if evaluation.step is None:
            raise ValueError(f"the rates of {cluster.gpu} are unknown; run `shardtune measure-hardware` on the worker")
        kind = gpu_kinds.kind_of(cluster.gpu)
        sizes = [replace(size, gpu=kind) for size in of_evaluation(evaluation, cluster.gpus_per_node)]
        fits = np.broadcast_to(evaluation.fits, len(sizes))
        return [FittingSize(size, bool(fit)) for size, fit in zip(sizes, fits, strict=True)]

    def _rates_of(self, cluster: Cluster) -> MeasuredHardware | None:
        """Measured rates with which configurations on a cluster are predicted; None with another kind of GPU as target,
        where all predictions use the catalogue's rates, so that their errors cancel in the ratio of two of them."""
        if self.has_other_gpus:
            return None
        is_own = cluster == self.cluster
        return self.hardware if is_own else rungs.target_rates(self.hardware, self.cluster, self.target)
