"""Seed trials: the first trials of a study, which are the user's baseline and those documented defaults of the backends
that the search needs."""

from collections.abc import Callable, Collection, Sequence

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.api_schemas.trials.trial import TrialOrigin
from shardtune.tuner.history import Observation
from shardtune.tuner.search.space import Space
from shardtune.tuner.search.space.backends.registry import BACKENDS
from shardtune.tuner.search.space.flat import flatten

MAX_SEEDS = 4
Seeds = list[tuple[TrialConfig, TrialOrigin]]
Forecast = Callable[[Sequence[TrialConfig]], Sequence[tuple[float, float]] | None]
"""Function that predicts the speed of each configuration in a list as a pair (expected, highest), where highest is the
upper end of the 90 % interval. The speed is 0 where a configuration does not fit; the function returns None where
nothing can be predicted."""


def documented_defaults(cluster: Cluster) -> list[TrialConfig]:
    """Documented default configurations of each backend, at micro batch 1 and without activation checkpointing."""
    return [TrialConfig(strategy=strategy) for backend in BACKENDS.values() for strategy in backend.defaults(cluster)]


def node_aligned(cluster: Cluster) -> list[TrialConfig]:
    """Configurations that shard within each node and replicate across nodes, so that the heaviest traffic stays within
    a node; none on a cluster of one node."""
    return [TrialConfig(strategy=strategy) for backend in BACKENDS.values() for strategy in backend.aligned(cluster)]


def _one_of_each(cluster: Cluster) -> list[TrialConfig]:
    return [TrialConfig(strategy=backend.defaults(cluster)[0]) for backend in BACKENDS.values()]


def seed_configs(
    space: Space, cluster: Cluster, baseline: TrialConfig | None, challengers: Sequence[TrialConfig] = ()
) -> Seeds:
    """Choose the at most four configurations that a study tries first; the user's baseline is among them, unchanged.

    With a baseline, one default of each backend follows. On several nodes, the first of these is the default that
    shards within each node and replicates across nodes. Defaults are changed to satisfy the user's limits. Challengers
    (configurations that a retune compares with the present answer) come right after the baseline, in addition to the
    four.
    """
    plain_defaults = documented_defaults(cluster) if baseline is None else _one_of_each(cluster)
    defaults = [*node_aligned(cluster), *plain_defaults]
    seeds: Seeds = [(baseline, TrialOrigin.BASELINE)] if baseline is not None else []
    keys = {space.key(config) for config, _ in seeds}
    for config in defaults:
        allowed = space.within_limits(config)
        # Where limits move a default to another stage, that stage's own default is among the seeds already.
        if allowed is None or _stage(allowed) != _stage(config) or space.key(allowed) in keys:
            continue
        keys.add(space.key(allowed))
        seeds.append((allowed, TrialOrigin.DEFAULT))
    chosen = seeds[:MAX_SEEDS]
    first = 1 if baseline is not None else 0
    return [*chosen[:first], *((config, TrialOrigin.CHALLENGER) for config in challengers), *chosen[first:]]


def due_seeds(seeds: Seeds, history: Sequence[Observation], rejected: Collection[str], forecast: Forecast) -> Seeds:
    """Choose the seeds (default configurations and the user's own) that run now, whatever the sampler prefers; all
    seeds where speed cannot be predicted.

    The user's baseline and challengers always run, and on several nodes the default that shards within each node. The
    other defaults run in order of predicted speed: one while no baseline runs, any whose predicted interval reaches the
    speed of the fastest measured default, and one of another backend while only one backend has run.
    """
    required = [(config, origin) for config, origin in seeds if origin is not TrialOrigin.DEFAULT]
    defaults = [config for config, origin in seeds if origin is TrialOrigin.DEFAULT]
    expected = forecast(defaults) if defaults else None
    if expected is None or not any(speed for speed, _ in expected):
        return seeds
    order = sorted(zip(defaults, expected, strict=True), key=lambda pair: -pair[1][0])
    tried_keys = {obs.config_key for obs in history} | set(rejected)
    # A default that is predicted not to fit comes last; the gate rejects it then, and the rejection is recorded.
    candidates = [(config, high) for config, (_, high) in order if config.content_key() not in tried_keys]
    alive = [obs for obs in history if obs.state.is_open or obs.is_measured]
    is_started = any(obs.origin is not TrialOrigin.SAMPLER for obs in alive) or bool(required and not history)
    node_aligned = [pair for pair in candidates if _has_two_axes(pair[0])]
    due = node_aligned or ([] if is_started else candidates[:1])
    backends = {obs.config.backend for obs in alive} | {config.backend for config, _ in required if not history}
    # Two backends must train the same thing before a reference is known (service.planning.agreement).
    if len(backends | {config.backend for config, _ in due}) < 2:
        started = backends | {config.backend for config, _ in due}
        due += [pair for pair in candidates if pair[0].backend not in started][:1]
    # Without the user's baseline the fastest default becomes the baseline, so every default that may be it runs.
    if not any(origin is TrialOrigin.BASELINE for _, origin in required):
        fastest = max((_speed(obs) for obs in alive if obs.origin is TrialOrigin.DEFAULT), default=0.0)
        due += [pair for pair in candidates if fastest and pair[1] >= fastest and pair not in due]
    return [*required, *((config, TrialOrigin.DEFAULT) for config, _ in due)]


def _speed(obs: Observation) -> float:
    return obs.measurement.tokens_per_s_per_gpu if obs.measurement is not None else 0.0


def _has_two_axes(config: TrialConfig) -> bool:
    """Whether a configuration is both sharded and replicated, which among the documented defaults means that it shards
    within each node and replicates across nodes."""
    flat = flatten(config)
    return flat.get("dp_replicate", 1) != 1 and flat.get("dp_shard", 1) != 1


def _stage(config: TrialConfig) -> KnobValue | None:
    """ZeRO stage (0 to 3) of a DeepSpeed configuration, None for other backends."""
    return flatten(config).get("stage")
