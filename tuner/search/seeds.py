"""The first trials of a study: the user's baseline and the backends' documented defaults."""

from collections.abc import Sequence

from shardtune.api_schemas.hardware import Cluster
from shardtune.api_schemas.search_space import KnobValue
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials import TrialOrigin
from shardtune.api_schemas.workload import Workload
from shardtune.tuner.search.space import Space
from shardtune.tuner.search.space.backends.registry import BACKENDS
from shardtune.tuner.search.space.flat import flatten

MOST_SEEDS = 4


def documented_defaults(cluster: Cluster) -> list[TrialConfig]:
    """Each backend as its documentation starts it, at micro batch 1 and without checkpointing."""
    return [TrialConfig(strategy=one) for backend in BACKENDS.values() for one in backend.defaults(cluster)]


def _one_of_each(cluster: Cluster) -> list[TrialConfig]:
    return [TrialConfig(strategy=backend.defaults(cluster)[0]) for backend in BACKENDS.values()]


def seed_configs(
    space: Space,
    workload: Workload,
    cluster: Cluster,
    baseline: TrialConfig | None,
    challengers: Sequence[TrialConfig] = (),
) -> list[tuple[TrialConfig, TrialOrigin]]:
    """At most four trials to run first; the user's baseline is one of them and runs exactly as it is.

    With a baseline, one default of each backend follows. Defaults are moved into the user's limits. Challengers (of a
    retune) come right after the baseline, and take no default's place.
    """
    defaults = documented_defaults(cluster) if baseline is None else _one_of_each(cluster)
    seeds: list[tuple[TrialConfig, TrialOrigin]] = [(baseline, TrialOrigin.BASELINE)] if baseline is not None else []
    keys = {space.key(config) for config, _ in seeds}
    for config in defaults:
        allowed = space.within_limits(config)
        if allowed is None or _stage(allowed) != _stage(config) or space.key(allowed) in keys:
            continue
        keys.add(space.key(allowed))
        seeds.append((allowed, TrialOrigin.DEFAULT))
    chosen = seeds[:MOST_SEEDS]
    first = 1 if baseline is not None else 0
    return [*chosen[:first], *((config, TrialOrigin.CHALLENGER) for config in challengers), *chosen[first:]]


def _stage(config: TrialConfig) -> KnobValue | None:
    """Where limits move a default to another stage, the one of that stage is a default already."""
    return flatten(config).get("stage")
