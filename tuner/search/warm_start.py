"""Warm start: a search uses the order of another study's trials to choose its own, never the other study's figures.

The other trials were measured on other hardware or software, or at another time. So that a sampler can use both, the
old speeds are scaled to the level of the new ones by the configurations that both studies have measured. Nothing else
compares the two: stopping, final comparison and verdict rest on the study's own runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from shardtune.tuner.history import Observation


@dataclass(frozen=True)
class WarmStart:
    """Complete trials of another study, from which a search may start."""

    study_id: str
    fingerprint: str | None
    """Key of the fingerprint (hardware and software versions) on which the trials were measured."""
    trials: tuple[Observation, ...]


def scaled_trials(warm: WarmStart | None, history: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return the trials of the other study that this study has not measured. Their speeds are scaled by the median
    ratio of the two studies' speeds for configurations that both measured."""
    if warm is None:
        return ()
    own_speeds = {obs.config_key: _speed(obs) for obs in history if obs.is_measured}
    other_trials = {obs.config_key: obs for obs in warm.trials if obs.is_measured}
    shared_keys = own_speeds.keys() & other_trials.keys()
    # Without a configuration measured in both studies nothing says how their speeds compare.
    if not shared_keys:
        return ()
    level = median(own_speeds[key] / _speed(other_trials[key]) for key in shared_keys)
    return tuple(_at_level(obs, level) for key, obs in other_trials.items() if key not in own_speeds)


def _at_level(obs: Observation, level: float) -> Observation:
    assert obs.measurement is not None
    return replace(obs, measurement=obs.measurement.model_copy(update={"tokens_per_s_per_gpu": _speed(obs) * level}))


def _speed(obs: Observation) -> float:
    assert obs.measurement is not None
    return obs.measurement.tokens_per_s_per_gpu
