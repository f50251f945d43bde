"""Measured configurations that grow to a study's target, and their projections to one size."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.tuner.objective import available_gib
from shardtune.tuner.projection.project import Projection, project
from shardtune.tuner.projection.rung_test import RungAnchors
from shardtune.tuner.projection.sizes import MeasuredSize, PredictedSize
from shardtune.tuner.projection.structural import StructuralError
from shardtune.tuner.projection.surrogates import Growth, growths
from shardtune.tuner.projection.target_sizes import FittingSize, TargetSizes


@dataclass(frozen=True)
class Grown:
    """Measured configuration, with one way of scaling it to the target."""

    contender: Contender
    growth: Growth
    anchor: MeasuredSize
    """Measurement of the configuration on the study's own cluster."""
    smaller: tuple[MeasuredSize, ...] = ()
    """Measurements of the scaled-down configuration by earlier studies on smaller clusters, smallest first."""


@dataclass(frozen=True)
class OnTarget:
    """One configuration on the target cluster, with the speed and memory that are projected for it."""

    grown: Grown
    config: TrialConfig
    predicted: PredictedSize
    """Prediction of the configuration on the target, without any measurement."""
    projection: Projection
    fits: bool
    """Whether the configuration should fit on the target: its projected memory is within what a GPU may use, or no more
    than was measured on the study's cluster."""

    @property
    def expected(self) -> float:
        """Expected tokens per second and GPU."""
        return self.projection.tokens_per_s_per_gpu.expected


def grown_configs(sizes: TargetSizes, measured: Sequence[Contender], rungs: RungAnchors | None = None) -> list[Grown]:
    """List the measured configurations with each way of scaling them to the target, such as with a larger shard group.
    Each has its measurements on the study's own cluster and on smaller ones."""
    here = sizes.predict([contender.config for contender in measured], sizes.cluster)
    return [
        Grown(
            contender,
            growth,
            MeasuredSize.at_speed(size.predicted, contender.tokens_per_s_per_gpu, contender.peak_allocated_gib),
            tuple(rungs.of(growth)) if rungs is not None else (),
        )
        for contender, size in zip(measured, here, strict=True)
        for growth in growths(contender.config, sizes.cluster, sizes.there)
    ]


def project_all(
    sizes: TargetSizes, grown: Sequence[Grown], cluster: Cluster, error: StructuralError | None = None
) -> list[OnTarget]:
    """Project all configurations that can run on `cluster` to it. `error`: error model of the projections; if None, the
    model fitted to published runs is used."""
    legal = [(row, config) for row in grown if (config := row.growth.at(cluster.world_size)) is not None]
    there = sizes.predict([config for _, config in legal], cluster)
    rows = []
    for (row, config), size in zip(legal, there, strict=True):
        projection = project(anchors_of(row, size), size.predicted, error)
        rows.append(OnTarget(row, config, size.predicted, projection, fits(sizes, row.anchor, projection, size)))
    return rows


def anchors_of(row: Grown, size: FittingSize) -> list[MeasuredSize]:
    """Measurements that a configuration is projected from to a size."""
    # Sizes with the target's layout displace those without. The nearest one, the study's own, must never be displaced.
    is_same = row.anchor.predicted.has_layout_of(size.predicted)
    return [*row.smaller, row.anchor] if is_same else [row.anchor]


def fits(sizes: TargetSizes, anchor: MeasuredSize, projection: Projection, size: FittingSize) -> bool:
    """Whether a configuration should fit into the memory that a GPU may use, by its projected memory."""
    # What was measured corrects the prediction, which alone would drop configurations that ran with as much memory.
    if anchor.memory_gib is None:
        return size.fits
    if sizes.has_other_gpus:
        return projection.memory_gib.expected <= available_gib(sizes.there, sizes.objective)
    limit = max(available_gib(sizes.cluster, sizes.objective), anchor.memory_gib)
    return projection.memory_gib.expected <= limit


def distinct(rows: Sequence[OnTarget]) -> list[OnTarget]:
    """Rows with each configuration once: where several trials are projected to one configuration, the row with the
    narrowest band."""
    surest: dict[str, OnTarget] = {}
    for row in rows:
        if _band_ratio(row) < _band_ratio(surest.setdefault(row.config.content_key(), row)):
            surest[row.config.content_key()] = row
    return list(surest.values())


def _band_ratio(row: OnTarget) -> float:
    return row.projection.tokens_per_s_per_gpu.high / row.expected
