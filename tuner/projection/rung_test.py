"""Rung test: smaller clusters of the same machines foretell what the study's own cluster measured.

It tells how far projections are off on these machines, with this model. Their measurements also anchor the projection to
the target, beside the study's own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.rung_tests import ForetoldTrial, RungTest
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.tuner.projection.project import project
from shardtune.tuner.projection.sizes import MeasuredSize
from shardtune.tuner.projection.structural import StructuralError, learnt
from shardtune.tuner.projection.surrogates import Growth, growths
from shardtune.tuner.projection.target_sizes import TargetSizes

_FEWEST = 3
"""Minimum number of trials for which a rung test (a prediction of the study's trials from smaller clusters) widens
error bands; the errors of one or two trials may be chance."""
_NOMINAL = 0.90
"""Fraction of measurements that the band of a projection should contain."""


@dataclass(frozen=True)
class Rung:
    """Smaller cluster of the same machines that was measured with as much work for each rank as on the study's
    cluster."""

    cluster: Cluster
    studies: tuple[str, ...]
    """Ids of the studies that measured on this smaller cluster."""
    measured: tuple[Contender, ...]
    """Measured trials of the studies that ran on this smaller cluster; each configuration occurs once."""


class RungAnchors:
    """Measurements on smaller clusters, looked up by the configuration and the way in which its sharding groups grow
    with the cluster."""

    def __init__(self, sizes: TargetSizes, rungs: Sequence[Rung]) -> None:
        self.rungs = tuple(sorted(rungs, key=lambda rung: rung.cluster.world_size))
        self._sizes = [(rung.cluster.world_size, _measured_sizes(sizes, rung)) for rung in self.rungs]

    def of(self, growth: Growth) -> list[MeasuredSize]:
        """Measured sizes of a configuration on the smaller clusters, smallest cluster first; on each, its sharding
        groups have the size that `growth` gives them."""
        found = []
        for ranks, measured in self._sizes:
            config = growth.at(ranks)
            size = None if config is None else measured.get(config.content_key())
            if size is not None:
                found.append(size)
        return found


def _measured_sizes(sizes: TargetSizes, rung: Rung) -> Mapping[str, MeasuredSize]:
    predicted = sizes.predict([contender.config for contender in rung.measured], rung.cluster)
    by_config: dict[str, MeasuredSize] = {}
    for contender, size in zip(rung.measured, predicted, strict=True):
        measured = MeasuredSize.at_speed(size.predicted, contender.tokens_per_s_per_gpu, contender.peak_allocated_gib)
        by_config.setdefault(contender.config.content_key(), measured)
    return by_config


def run(sizes: TargetSizes, anchors: RungAnchors, measured: Sequence[Contender]) -> RungTest | None:
    """Project the speed of each measured trial of the study from smaller clusters alone, and compare it with the
    measurement.

    Returns:
        The comparison; None if no smaller cluster measured the configuration of any trial, with its shard groups
            scaled down.
    """
    here = sizes.predict([contender.config for contender in measured], sizes.cluster)
    foretold: list[ForetoldTrial] = []
    half_widths: list[float] = []
    for contender, size in zip(measured, here, strict=True):
        found = [
            sized for growth in growths(contender.config, sizes.cluster, sizes.there) if (sized := anchors.of(growth))
        ]
        if not found:
            continue
        # Where a group stands for several larger ones, all of them are the same configuration here.
        known = max(found, key=len)
        speed = project(known, size.predicted).tokens_per_s_per_gpu
        half_widths.append(math.log(speed.high / speed.expected))
        foretold.append(
            ForetoldTrial(
                trial_number=contender.trial_number,
                from_gpus=tuple(anchor.predicted.gpus for anchor in known),
                tokens_per_s_per_gpu=speed.band,
                measured_tokens_per_s_per_gpu=contender.tokens_per_s_per_gpu,
            )
        )
    return _compared(anchors, foretold, half_widths) if foretold else None


def _compared(anchors: RungAnchors, foretold: Sequence[ForetoldTrial], half_widths: Sequence[float]) -> RungTest:
    errors = [abs(trial.relative_error) for trial in foretold]
    used = {gpus for trial in foretold for gpus in trial.from_gpus}
    return RungTest(
        from_gpus=tuple(sorted(used)),
        studies=tuple(study for rung in anchors.rungs if rung.cluster.world_size in used for study in rung.studies),
        trials=tuple(foretold),
        median_error=median(errors),
        largest_error=max(errors),
        inside_band=sum(trial.is_inside for trial in foretold),
        band_factor=band_factor(_reached(foretold, half_widths)),
    )


def _reached(foretold: Sequence[ForetoldTrial], half_widths: Sequence[float]) -> list[float]:
    return [
        abs(math.log(trial.measured_tokens_per_s_per_gpu / trial.tokens_per_s_per_gpu.expected)) / half_width
        for trial, half_width in zip(foretold, half_widths, strict=True)
    ]


def band_factor(errors: Sequence[float]) -> float:
    """Factor by which bands must be widened so that 90 % of the trials lie within the bands projected from smaller
    clusters; at least 1.

    `errors`: error of each projected trial, as a multiple of its band's half-width.
    """
    if len(errors) < _FEWEST:
        return 1.0
    # Errors of one pair of clusters are not independent: few errors never narrow a band.
    return max(1.0, sorted(errors)[math.ceil(_NOMINAL * len(errors)) - 1])


def error_after(test: RungTest | None) -> StructuralError:
    """Error model of projections to the target: that of published runs, with wider bands where the rung test
    (projections from smaller clusters) was further off."""
    return learnt() if test is None else widened(test.band_factor)


def widened(factor: float) -> StructuralError:
    """Error model of published runs, with bands widened by the factor of a rung test (projections from smaller clusters
    against measurements)."""
    return replace(learnt(), widening=factor)
