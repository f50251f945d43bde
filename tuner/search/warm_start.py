"""What a search may learn from trials of another study: their order, never their figures.

They were measured on other hardware or software, or at another time. So that a sampler can see old and new side by side,
the old speeds are put at the level of the new ones by the configurations that both have measured. Nothing else ever
compares the two: stopping, final comparison and verdict rest on the study's own runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from shardtune.tuner.history import Observation


@dataclass(frozen=True)
class WarmStart:
    """Complete trials of another study."""

    study_id: str
    fingerprint: str | None
    """Key of the fingerprint they were measured on."""
    trials: tuple[Observation, ...]


def levelled(warm: WarmStart | None, history: Sequence[Observation]) -> tuple[Observation, ...]:
    """Trials of the other study that this one has not measured, at this study's level of speed.

    Empty until a configuration of it has been measured here: without that nothing says how the two compare.
    """
    if warm is None:
        return ()
    here = {obs.config_key: _speed(obs) for obs in history if obs.is_measured}
    there = {obs.config_key: obs for obs in warm.trials if obs.is_measured}
    both = here.keys() & there.keys()
    if not both:
        return ()
    level = median(here[key] / _speed(there[key]) for key in both)
    return tuple(_at_level(obs, level) for key, obs in there.items() if key not in here)


def _at_level(obs: Observation, level: float) -> Observation:
    assert obs.measurement is not None
    return replace(obs, measurement=obs.measurement.model_copy(update={"tokens_per_s_per_gpu": _speed(obs) * level}))


def _speed(obs: Observation) -> float:
    assert obs.measurement is not None
    return obs.measurement.tokens_per_s_per_gpu
