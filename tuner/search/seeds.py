"""The first trials of a study: the user's baseline, and of the backends' documented defaults those that it needs."""

from collections.abc import Callable, Collection, Sequence

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.api_schemas.trials.trial import TrialOrigin
from shardtune.tuner.history import Observation
from shardtune.tuner.search.space import Space
from shardtune.tuner.search.space.backends.registry import BACKENDS
from shardtune.tuner.search.space.flat import flatten

MOST_SEEDS = 4
Seeds = list[tuple[TrialConfig, TrialOrigin]]
Forecast = Callable[[Sequence[TrialConfig]], Sequence[tuple[float, float]] | None]
"""Expected and highest speed (90 % interval) of each, 0 where it will not fit; None where nothing can be predicted."""


def documented_defaults(cluster: Cluster) -> list[TrialConfig]:
    """Each backend as its documentation starts it, at micro batch 1 and without checkpointing."""
    return [TrialConfig(strategy=one) for backend in BACKENDS.values() for one in backend.defaults(cluster)]


def aligned(cluster: Cluster) -> list[TrialConfig]:
    """Meshes that follow the nodes; none on one node."""
    return [TrialConfig(strategy=one) for backend in BACKENDS.values() for one in backend.aligned(cluster)]


def _one_of_each(cluster: Cluster) -> list[TrialConfig]:
    return [TrialConfig(strategy=backend.defaults(cluster)[0]) for backend in BACKENDS.values()]


def seed_configs(
    space: Space, cluster: Cluster, baseline: TrialConfig | None, challengers: Sequence[TrialConfig] = ()
) -> Seeds:
    """At most four trials to run first; the user's baseline is one of them and runs exactly as it is.

    With a baseline, one default of each backend follows. Over several nodes the mesh that follows them is the first default.
    Defaults are moved into the user's limits. Challengers (of a
    retune) come right after the baseline, and take no default's place.
    """
    others = documented_defaults(cluster) if baseline is None else _one_of_each(cluster)
    defaults = [*aligned(cluster), *others]
    seeds: Seeds = [(baseline, TrialOrigin.BASELINE)] if baseline is not None else []
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


def due_seeds(seeds: Seeds, history: Sequence[Observation], rejected: Collection[str], forecast: Forecast) -> Seeds:
    """Of the seeds, those that run now, whatever the sampler thinks of them.

    The user's baseline and challengers always do, and over several nodes the mesh that follows them. Of the defaults, fastest by prediction first: one while there is no
    baseline that runs, and any whose interval reaches the fastest measured default, since that becomes the baseline; and one of
    another backend while only one has run, because two must train the same thing (service.planning.agreement). All of
    them where nothing can be predicted.
    """
    given = [(config, origin) for config, origin in seeds if origin is not TrialOrigin.DEFAULT]
    defaults = [config for config, origin in seeds if origin is TrialOrigin.DEFAULT]
    expected = forecast(defaults) if defaults else None
    if expected is None or not any(speed for speed, _ in expected):
        return seeds
    order = sorted(zip(defaults, expected, strict=True), key=lambda one: -one[1][0])
    tried = {obs.config_key for obs in history} | set(rejected)
    # What is predicted not to fit comes last: that the gate rejects it is on record then.
    left = [(config, high) for config, (_, high) in order if config.content_key() not in tried]
    alive = [obs for obs in history if obs.state.is_open or obs.is_measured]
    is_started = any(obs.origin is not TrialOrigin.SAMPLER for obs in alive) or bool(given and not history)
    first = [one for one in left if _has_two_axes(one[0])]
    due = first or ([] if is_started else left[:1])
    backends = {obs.config.backend for obs in alive} | {config.backend for config, _ in given if not history}
    if len(backends | {config.backend for config, _ in due}) < 2:
        due += [one for one in left if one[0].backend not in backends | {config.backend for config, _ in due}][:1]
    if not any(origin is TrialOrigin.BASELINE for _, origin in given):
        fastest = max((_speed(obs) for obs in alive if obs.origin is TrialOrigin.DEFAULT), default=0.0)
        due += [one for one in left if fastest and one[1] >= fastest and one not in due]
    return [*given, *((config, TrialOrigin.DEFAULT) for config, _ in due)]


def _speed(obs: Observation) -> float:
    return obs.measurement.tokens_per_s_per_gpu if obs.measurement is not None else 0.0


def _has_two_axes(config: TrialConfig) -> bool:
    """Of the defaults only those that follow the nodes are sharded and replicated."""
    flat = flatten(config)
    return flat.get("dp_replicate", 1) != 1 and flat.get("dp_shard", 1) != 1


def _stage(config: TrialConfig) -> KnobValue | None:
    """Where limits move a default to another stage, the one of that stage is a default already."""
    return flatten(config).get("stage")
