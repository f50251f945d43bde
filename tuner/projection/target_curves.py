"""Speeds of a study's configurations on every size between its cluster and its target."""

from collections.abc import Mapping, Sequence

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.api_schemas.studies.targets import BestAtSize, CurvePoint
from shardtune.tuner.projection.project import project
from shardtune.tuner.projection.structural import StructuralError
from shardtune.tuner.projection.target_rows import OnTarget, anchors_of, fits, project_all
from shardtune.tuner.projection.target_sizes import TargetSizes

_COMPARED = 16
"""Maximum number of configurations taken from each of two lists: the fastest on the target, as predicted, and the
fastest measured. All of them are projected to every cluster size."""

_LOST_AT_BEND = 0.10
"""Fraction of the measured speed per GPU whose loss counts as the bend of a curve."""


def bend(curve: Sequence[CurvePoint]) -> int | None:
    """Smallest number of GPUs of a curve whose speed per GPU is expected to be more than a tenth below that of its first
    point; None if there is none, or no point at all."""
    if not curve:
        return None
    least = (1.0 - _LOST_AT_BEND) * curve[0].tokens_per_s_per_gpu.expected
    return next((point.gpus for point in curve if point.tokens_per_s_per_gpu.expected < least), None)


class Curves:
    """Speed curves: the speeds of the most promising configurations on each cluster size from the study's cluster up to
    the target."""

    def __init__(
        self, sizes: TargetSizes, fitting: Sequence[OnTarget], ranks: Mapping[int, int], error: StructuralError
    ) -> None:
        self._sizes, self._error = sizes, error
        by_rank = sorted(fitting, key=lambda row: ranks[row.grown.contender.trial_number])
        chosen = {id(row): row.grown for row in (*fitting[:_COMPARED], *by_rank[:_COMPARED])}
        self._grown = list(chosen.values())
        self._rows = {cluster.nodes: project_all(sizes, self._grown, cluster, error) for cluster in sizes.between()}

    def of(self, shown: OnTarget) -> tuple[CurvePoint, ...]:
        """Points of one configuration."""
        here, contender = self._sizes.cluster, shown.grown.contender
        measured = CurvePoint(
            nodes=here.nodes, gpus=here.world_size, evidence="measured", tokens_per_s_per_gpu=_exactly(contender)
        )
        # One curve is of one kind of GPU.
        points = [] if self._sizes.has_other_gpus else [measured]
        for nodes, rows in self._rows.items():
            row = next((row for row in rows if row.grown is shown.grown), None)
            if row is not None:
                gpus, speed = row.projection.gpus, row.projection.tokens_per_s_per_gpu.band
                points.append(CurvePoint(nodes=nodes, gpus=gpus, evidence="projected", tokens_per_s_per_gpu=speed))
        return tuple(points)

    def strong_scaling(self, shown: OnTarget) -> tuple[CurvePoint, ...]:
        """Points of one configuration with the target's global batch on every size where it fits, also on the study's
        own."""
        sizes, batch, points = self._sizes, self._sizes.global_batch(self._sizes.there), list[CurvePoint]()
        own = [] if sizes.has_other_gpus else [sizes.cluster]
        for cluster in (*own, *sizes.between()):
            config = shown.grown.growth.at(cluster.world_size)
            if config is None or batch % (config.micro_batch * config.data_ranks(cluster.world_size)):
                continue
            (size,) = sizes.predict([config], cluster, batch)
            projection = project(anchors_of(shown.grown, size), size.predicted, self._error)
            # Accumulation may need memory that the trial, with fewer micro batches a step, did not need.
            if not fits(sizes, shown.grown.anchor, projection, size):
                continue
            points.append(
                CurvePoint(
                    nodes=cluster.nodes,
                    gpus=cluster.world_size,
                    evidence="projected",
                    tokens_per_s_per_gpu=projection.tokens_per_s_per_gpu.band,
                )
            )
        return tuple(points)

    def best_of_each_size(self, contender: Contender) -> tuple[BestAtSize, ...]:
        """Fastest configuration on each cluster size; on the study's own cluster this is `contender`, the fastest
        measured trial."""
        here = self._sizes.cluster
        own = _best_at(self._sizes, here, contender, contender.config, _exactly(contender), is_measured=True)
        rows = [] if self._sizes.has_other_gpus else [own]
        for cluster in self._sizes.between():
            fitting = [row for row in self._rows[cluster.nodes] if row.fits]
            if fitting:
                best = max(fitting, key=lambda row: row.expected)
                speed = best.projection.tokens_per_s_per_gpu.band
                rows.append(_best_at(self._sizes, cluster, best.grown.contender, best.config, speed))
        return tuple(rows)


def _exactly(contender: Contender) -> Band:
    """Return a measured speed as a band of zero width."""
    speed = contender.tokens_per_s_per_gpu
    return Band(expected=speed, low=speed, high=speed)


def _best_at(
    sizes: TargetSizes,
    cluster: Cluster,
    contender: Contender,
    config: TrialConfig,
    speed: Band,
    *,
    is_measured: bool = False,
) -> BestAtSize:
    return BestAtSize(
        nodes=cluster.nodes,
        gpus=cluster.world_size,
        global_batch=sizes.global_batch(cluster),
        evidence="measured" if is_measured else "projected",
        trial_number=contender.trial_number,
        config=config,
        description=config.describe(),
        tokens_per_s_per_gpu=speed,
    )
