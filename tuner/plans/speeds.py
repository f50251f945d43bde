"""Speeds of a plan's configurations on one kind of GPU: predicted, projected from measurements on fewer GPUs, or
measured."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.plan_rows import Evidence
from shardtune.api_schemas.trials.plans import PlanMeasurement
from shardtune.tuner.plans.layouts import PlanLayouts, join
from shardtune.tuner.prediction.calibration import BAND_DEVIATIONS, MemoryCalibration
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import Evaluation, evaluate
from shardtune.tuner.prediction.prediction_request import ResolvedRequest
from shardtune.tuner.projection.project import project
from shardtune.tuner.projection.sizes import MeasuredSize, PredictedSize, of_evaluation

_BEST_SIGMA = 0.27
"""Standard deviation of log(measured / predicted) speed for the best of many predictions, from the best published
speeds of 15 pairs of source and GPU (docs/measurements/scaling.md)."""
_PROJECTED = 32
"""Number of configurations, the fastest by prediction, whose projection is computed for each number of GPUs."""


@dataclass(frozen=True)
class ConfigSpeed:
    """Speed of one configuration of a plan; `index` is its position among the plan's layouts."""

    index: int
    tokens_per_s_per_gpu: Band
    evidence: Evidence
    anchors: tuple[int, ...] = ()
    slowness_if_scattered: float = 1.0
    """Factor by which the low end of the band is lower, because neighbouring nodes may be below different leaf
    switches."""


@dataclass(frozen=True)
class KindSpeeds:
    """Predictions for a plan's configurations (its layouts) on one kind of GPU."""

    layouts: PlanLayouts
    evaluation: Evaluation
    cluster: Cluster
    anchors: tuple[MeasuredSize, ...]
    measured_configs: tuple[TrialConfig, ...]
    """Configuration of each of the anchors. The sizes that are projected leave out most of its settings."""

    @property
    def knows_speed(self) -> bool:
        """Whether the catalogue has the rates of this kind of GPU, so that speeds can be predicted."""
        return self.evaluation.step is not None

    def fastest(self, gpus: int) -> ConfigSpeed | None:
        """Fastest configuration on a number of GPUs: among those that certainly fit in memory, else among those that
        may fit; None where no configuration fits. Those that a study measured come before all others, as it compared
        them with what it tried; a projection of any other layout would compare a measurement with a prediction."""
        at_count = self.layouts.gpus == gpus
        studied = [] if self.layouts.of_study is None else [at_count & self.layouts.of_study]
        for candidates in (*studied, at_count):
            for fits in (self.surely_fits & candidates, self._may_fit & candidates):
                if fits.any():
                    return self._fastest_of(np.flatnonzero(fits))
        return None

    @property
    def surely_fits(self) -> NDArray[np.bool_]:
        """Whether the upper end of each configuration's memory band is within the GPU's memory."""
        _, highest = MemoryCalibration().bounds(1.0)
        fits: NDArray[np.bool_] = self._may_fit & (self.evaluation.total_gib * highest <= self.cluster.memory_gib)
        return fits

    @property
    def _may_fit(self) -> NDArray[np.bool_]:
        return np.broadcast_to(self.evaluation.fits, self.layouts.gpus.shape)

    def _fastest_of(self, indices: NDArray[np.intp]) -> ConfigSpeed:
        speeds = self.evaluation.tokens_per_s_per_gpu
        assert speeds is not None
        order = indices[np.argsort(-speeds[indices], kind="stable")]
        if not self.anchors:
            return self._predicted(int(order[0]), float(speeds[order[0]]))
        smallest = min(anchor.predicted.gpus for anchor in self.anchors)
        if self.layouts.gpus[order[0]] < smallest:
            return self._predicted(int(order[0]), float(speeds[order[0]]))
        sizes = self._sizes
        measured = {anchor.predicted.layout_values for anchor in self.anchors}
        like = [
            int(index)
            for index in order
            if sizes[index].layout_values in measured
            and any(anchor.predicted.has_layout_of(sizes[index]) for anchor in self.anchors)
        ]
        chosen = dict.fromkeys([*map(int, order[:_PROJECTED]), *like])
        return max(
            (self._project(index, sizes[index]) for index in chosen), key=lambda s: s.tokens_per_s_per_gpu.expected
        )

    @cached_property
    def _sizes(self) -> list[PredictedSize]:
        return of_evaluation(self.evaluation, self.cluster.gpus_per_node)

    def _predicted(self, index: int, speed: float) -> ConfigSpeed:
        spread = math.exp(BAND_DEVIATIONS * _BEST_SIGMA)
        scattered = float(self.evaluation.slowness_if_scattered[index])
        band = Band(expected=speed, low=speed / spread / scattered, high=speed * spread)
        return ConfigSpeed(index, band, "predicted", slowness_if_scattered=scattered)

    def _project(self, index: int, size: PredictedSize) -> ConfigSpeed:
        projection = project(self.anchors, size)
        speed, measured = projection.tokens_per_s_per_gpu, self._measured_speeds(index, size)
        if not measured:
            band = Band(expected=speed.expected, low=speed.low, high=speed.high)
            anchors = tuple(sorted(set(projection.anchors)))
            return ConfigSpeed(index, band, "projected", anchors, projection.slowness_if_scattered)
        # Several measurements at other sizes smooth the projected speed; this one was measured.
        own, ratio = median(measured), speed.high / speed.expected
        return ConfigSpeed(index, Band(expected=own, low=own / ratio, high=own * ratio), "measured", (size.gpus,))

    def _measured_speeds(self, index: int, size: PredictedSize) -> list[float]:
        config = self.layouts.configs[index]
        pairs = zip(self.anchors, self.measured_configs, strict=True)
        return [anchor.tokens_per_s_per_gpu for anchor, own in pairs if anchor.is_of(size) and own == config]


def speeds_of_kind(
    resolved: ResolvedRequest, layouts: PlanLayouts, global_batch: int, measurements: Sequence[PlanMeasurement]
) -> KindSpeeds:
    """Predict a plan's layouts on one kind of GPU, together with the configurations that were measured on it.

    Raises:
        ValueError: a measured configuration that its GPUs cannot run.
    """
    workload = resolved.workload(global_batch)
    evaluation = evaluate(resolved.shape, layouts.candidates, workload, resolved.cluster)
    used = measurements if evaluation.step else ()
    anchors = tuple(_measured_sizes(resolved, used)) if used else ()
    return KindSpeeds(layouts, evaluation, resolved.cluster, anchors, tuple(item.config for item in used))


def _measured_sizes(resolved: ResolvedRequest, measurements: Sequence[PlanMeasurement]) -> Iterator[MeasuredSize]:
    """Measured configurations with their predictions, which are computed in one call: a prediction of one configuration
    takes as long as one of a hundred."""
    batches = [_global_batch(measurement) for measurement in measurements]
    candidates = join(
        [
            from_configs([measurement.config], resolved.sequence, measurement.gpus, batch)
            for measurement, batch in zip(measurements, batches, strict=True)
        ]
    )
    evaluation = evaluate(resolved.shape, candidates, resolved.workload(max(batches)), resolved.cluster)
    sizes = of_evaluation(evaluation, resolved.cluster.gpus_per_node)
    for size, measurement in zip(sizes, measurements, strict=True):
        yield MeasuredSize.at_speed(size, measurement.tokens_per_s_per_gpu, measurement.peak_gib)


def _global_batch(measurement: PlanMeasurement) -> int:
    """Samples per step of a measured run.

    Raises:
        ValueError: the measured number of GPUs cannot run the configuration.
    """
    config, gpus = measurement.config, measurement.gpus
    config.strategy.check_ranks(gpus)
    return config.micro_batch * config.data_ranks(gpus) * measurement.gradient_accumulation
