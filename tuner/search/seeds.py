"""The first trials of a study: the user's baseline and the backends' documented defaults."""

from collections.abc import Sequence

from shardtune.api_schemas.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Strategy, TrialConfig, ZeroConfig
from shardtune.api_schemas.workload import Workload
from shardtune.tuner.history import Origin
from shardtune.tuner.search.space import Space

MOST_SEEDS = 4


def documented_defaults(cluster: Cluster) -> list[TrialConfig]:
    """Each backend as its documentation starts it, at micro batch 1 and without checkpointing."""
    strategies: list[Strategy] = [
        DdpConfig(),
        # DeepSpeed 0.19.8 turns overlap_comm on by default at stage 3 alone.
        ZeroConfig(stage=2, overlap_comm=False),
        ZeroConfig(stage=3),
        Fsdp2Config(dp_shard=cluster.world_size),
        # Last: it is legacy, and runs only where limits leave a seed for it.
        Fsdp1Config(dp_shard=cluster.world_size),
    ]
    return [TrialConfig(strategy=strategy) for strategy in strategies]


def seed_configs(
    space: Space,
    workload: Workload,
    cluster: Cluster,
    baseline: TrialConfig | None,
    challengers: Sequence[TrialConfig] = (),
) -> list[tuple[TrialConfig, Origin]]:
    """At most four trials to run first; the user's baseline is one of them and runs exactly as it is.

    With a baseline, one default of each backend follows. Defaults are moved into the user's limits. Challengers (of a
    retune) come right after the baseline, and take no default's place.
    """
    defaults = documented_defaults(cluster)
    if baseline is not None:
        defaults = [config for config in defaults if _stage(config) != 3]
    seeds: list[tuple[TrialConfig, Origin]] = [(baseline, "baseline")] if baseline is not None else []
    keys = {space.key(config) for config, _ in seeds}
    for config in defaults:
        allowed = space.within_limits(config)
        if allowed is None or _stage(allowed) != _stage(config) or space.key(allowed) in keys:
            continue
        keys.add(space.key(allowed))
        seeds.append((allowed, "default"))
    chosen = seeds[:MOST_SEEDS]
    first = 1 if baseline is not None else 0
    return [*chosen[:first], *((config, "challenger") for config in challengers), *chosen[first:]]


def _stage(config: TrialConfig) -> int | None:
    return config.strategy.stage if isinstance(config.strategy, ZeroConfig) else None
