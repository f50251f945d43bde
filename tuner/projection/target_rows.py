"""Measured configurations that grow to a study's target, and their projections to one size."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.tuner.objective import available_gib
from shardtune.tuner.projection.project import Projection, project
from shardtune.tuner.projection.rung_test import RungAnchors
from shardtune.tuner.projection.sizes import MeasuredSize
from shardtune.tuner.projection.structural import StructuralError
from shardtune.tuner.projection.surrogates import Growth, growths
from shardtune.tuner.projection.target_sizes import FittingSize, TargetSizes


@dataclass(frozen=True)
class Grown:
    """Measured configuration that grows to the target."""

    contender: Contender
    growth: Growth
    anchor: MeasuredSize
    """Size on which the study measured it."""
    smaller: tuple[MeasuredSize, ...] = ()
    """Sizes on which earlier studies measured it, smallest first."""


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


def grown_configs(sizes: TargetSizes, measured: Sequence[Contender], rungs: RungAnchors | None = None) -> list[Grown]:
    """Measured configurations with the fields that must change on the target, such as the shard group's size. Each has what
    was measured on the study's own cluster and on smaller ones."""
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
    """Projections to a cluster of all configurations that can run on it. `error`: error of a projection that more runs would
    not reduce; None: that of published runs."""
    legal = [(row, config) for row in grown if (config := row.growth.at(cluster.world_size)) is not None]
    there = sizes.predict([config for _, config in legal], cluster)
    rows = []
    for (row, config), size in zip(legal, there, strict=True):
        projection = project(_anchors(row, size), size.predicted, error)
        rows.append(OnTarget(row, config, projection, _fits(sizes, row.anchor, projection, size)))
    return rows


def _anchors(row: Grown, size: FittingSize) -> list[MeasuredSize]:
    # Sizes with the target's layout displace those without. The nearest one, the study's own, must never be displaced.
    is_same = row.anchor.predicted.has_layout_of(size.predicted)
    return [*row.smaller, row.anchor] if is_same else [row.anchor]


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
