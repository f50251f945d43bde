"""Layouts of a plan that come from a study: its measured configurations, scaled to each number of GPUs."""

from collections.abc import Iterator, Sequence

import numpy as np

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.plans import PlanMeasurement
from shardtune.tuner.plans.layouts import PlanLayouts, is_near, join
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.projection.surrogates import growths


def with_grown(
    layouts: PlanLayouts,
    measurements: Sequence[PlanMeasurement],
    counts: Sequence[int],
    cluster: Cluster,
    sequence: int,
    global_batch: int,
) -> PlanLayouts:
    """Add the measured configurations of a study to the layouts on each number of GPUs that is at least the measured
    one, and mark them. A plan tries no compiled blocks, for instance, but projects those that a study measured.

    `cluster`: nodes of the plan, of any number.
    """
    grown = [
        (config, count, micro_batches)
        for count in counts
        for config, micro_batches in _grown(measurements, _of(cluster, count), global_batch)
    ]
    if not grown:
        return layouts
    parts = [from_configs([config], sequence, count, global_batch) for config, count, _ in grown]
    candidates = join([layouts.candidates, *parts])
    accumulation = np.concatenate(
        [np.broadcast_to(layouts.candidates.accumulation, len(layouts.configs)), [row[2] for row in grown]]
    )
    return PlanLayouts(
        (*layouts.configs, *(config for config, _, _ in grown)),
        np.concatenate([layouts.gpus, [count for _, count, _ in grown]]),
        candidates.with_values(accumulation=accumulation),
        np.arange(len(layouts.configs) + len(grown)) >= len(layouts.configs),
    )


def _grown(
    measurements: Sequence[PlanMeasurement], there: Cluster, global_batch: int
) -> Iterator[tuple[TrialConfig, int]]:
    """Configurations on a cluster, each once, with the number of micro batches that comes closest to the global
    batch."""
    ranks = there.world_size
    scaled = [
        growth.at(ranks) for item in measurements if item.gpus <= ranks for growth in growths(item.config, there, there)
    ]
    for config in {config.content_key(): config for config in scaled if config is not None}.values():
        if ranks % config.sharing:
            continue
        samples = config.micro_batch * config.data_ranks(ranks)
        micro_batches = max(1, round(global_batch / samples))
        # A pipeline with fewer micro batches than stages mostly idles.
        if is_near(micro_batches * samples, global_batch) and micro_batches >= config.strategy.stages:
            yield config, micro_batches


def _of(cluster: Cluster, gpus: int) -> Cluster:
    per_node = min(cluster.gpus_per_node, gpus)
    return cluster.model_copy(update={"nodes": gpus // per_node, "gpus_per_node": per_node})
