"""Measured configurations that grow to a study's target, and their projections to one size."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Contender
from shardtune.tuner.objective import available_gib
from shardtune.tuner.projection.project import ProjectedValue, Projection, project
from shardtune.tuner.projection.sizes import MeasuredSize
from shardtune.tuner.projection.surrogates import Growth, growths
from shardtune.tuner.projection.target_sizes import FittingSize, TargetSizes


@dataclass(frozen=True)
class Grown:
    """Measured configuration that grows to the target."""

    contender: Contender
    growth: Growth
    anchor: MeasuredSize


@dataclass(frozen=True)
class OnTarget:
    """Configuration on the target, with its projection."""

    grown: Grown
    config: TrialConfig
    projection: Projection
    fits: bool
    """Whether its tensors should fit into the memory that a GPU may use, or need no more than on the study's cluster."""

    @property
    def expected(self) -> float:
        """Expected tokens per second and GPU."""
        return self.projection.tokens_per_s_per_gpu.expected


def grown_configs(sizes: TargetSizes, measured: Sequence[Contender]) -> list[Grown]:
    """Ways in which the measured configurations grow to the target, each with what was measured."""
    here = sizes.predict([contender.config for contender in measured], sizes.cluster)
    return [
        Grown(
            contender,
            growth,
            MeasuredSize.at_speed(size.predicted, contender.tokens_per_s_per_gpu, contender.peak_allocated_gib),
        )
        for contender, size in zip(measured, here, strict=True)
        for growth in growths(contender.config, sizes.cluster, sizes.there)
    ]


def project_all(sizes: TargetSizes, grown: Sequence[Grown], cluster: Cluster) -> list[OnTarget]:
    """Projections to a cluster of all configurations that can run on it."""
    legal = [(row, config) for row in grown if (config := row.growth.at(cluster.world_size)) is not None]
    there = sizes.predict([config for _, config in legal], cluster)
    rows = []
    for (row, config), size in zip(legal, there, strict=True):
        projection = project([row.anchor], size.predicted)
        rows.append(OnTarget(row, config, projection, _fits(sizes, row.anchor, projection, size)))
    return rows


def _fits(sizes: TargetSizes, anchor: MeasuredSize, projection: Projection, size: FittingSize) -> bool:
    # What was measured corrects the prediction, which alone would drop configurations that ran with as much memory.
    if anchor.memory_gib is None:
        return size.fits
    limit = max(available_gib(sizes.cluster, sizes.objective), anchor.memory_gib)
    return projection.memory_gib.expected <= limit


def distinct(rows: Sequence[OnTarget]) -> list[OnTarget]:
    """Rows with each configuration once: of several trials that stand for it, the one whose projection is surest."""
    surest: dict[str, OnTarget] = {}
    for row in rows:
        if _band_ratio(row) < _band_ratio(surest.setdefault(row.config.content_key(), row)):
            surest[row.config.content_key()] = row
    return list(surest.values())


def _band_ratio(row: OnTarget) -> float:
    return row.projection.tokens_per_s_per_gpu.high / row.expected


def exactly(contender: Contender) -> Band:
    """Measured speed as a band of no width."""
    speed = contender.tokens_per_s_per_gpu
    return Band(expected=speed, low=speed, high=speed)


def band(value: ProjectedValue) -> Band:
    """Projected value as a band of the API."""
    return Band(expected=value.expected, low=value.low, high=value.high)
