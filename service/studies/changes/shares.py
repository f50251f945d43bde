"""Effect of each changed setting on speed: measured where two runs differ in it alone, predicted otherwise."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.tuner.search.space.flat import flatten, unflatten
from shardtune.tuner.search.space.legal_values import COMMON, Flat

Origin = Literal["measured", "predicted", "unknown"]
SpeedOf = Callable[[TrialConfig], float | None]
"""Predicted speed of a configuration; None where nothing is predicted."""


@dataclass(frozen=True)
class SettingChange:
    """One setting in which the recommended configuration differs from today's."""

    name: str
    """Name of the knob; `backend` stands for all settings of the strategy."""
    before: KnobValue | None
    after: KnobValue | None
    factor: float | None
    """Speed with the change over speed without it; None if it is not known."""
    origin: Origin
    share: float | None
    """Part of the whole gain, by the logarithms of the factors; None unless all factors are known and the whole is a
    gain."""


def changes_of(
    today: TrialConfig, best: TrialConfig, search_speeds: Mapping[TrialConfig, float], predicted: SpeedOf
) -> tuple[SettingChange, ...]:
    """Return the changes between two configurations, the largest effect first.

    `search_speeds`: speeds of the study's search runs by configuration.
    """
    units = knobs_by_change(flatten(today), flatten(best))
    effects = [(name, *_factor(today, best, names, search_speeds, predicted)) for name, names in units.items()]
    logs = [math.log(factor) for _, factor, _ in effects if factor]
    total = sum(logs) if len(logs) == len(effects) else 0.0
    before, after = flatten(today), flatten(best)
    changes = [
        SettingChange(
            name=name,
            before=before.get(name),
            after=after.get(name),
            factor=factor,
            origin=origin,
            share=math.log(factor) / total if factor and total > 0 else None,
        )
        for name, factor, origin in effects
    ]
    return tuple(sorted(changes, key=lambda change: -(change.factor or 0.0)))


def knobs_by_change(today: Flat, best: Flat) -> dict[str, Sequence[str]]:
    """Return the knobs that change together, by the name of the change."""
    if today["backend"] == best["backend"]:
        return {name: (name,) for name in best if today.get(name) != best[name]}
    common = {name: (name,) for name in COMMON if today.get(name) != best.get(name)}
    return {"backend": tuple(name for name in best if name not in COMMON), **common}


def _factor(
    today: TrialConfig,
    best: TrialConfig,
    names: Sequence[str],
    search_speeds: Mapping[TrialConfig, float],
    predicted: SpeedOf,
) -> tuple[float | None, Origin]:
    """Return the effect of one change: from today's configuration with it alone, or from the best without it."""
    with_it, without_it = with_settings_of(today, best, names), with_settings_of(best, today, names)
    for new, old in ((with_it, today), (best, without_it)):
        if new is None or old is None or not {new, old} <= search_speeds.keys():
            continue
        return search_speeds[new] / search_speeds[old], "measured"
    fast, slow = predicted(best), None if without_it is None else predicted(without_it)
    return (fast / slow, "predicted") if fast and slow else (None, "unknown")


def with_settings_of(base: TrialConfig, other: TrialConfig, names: Sequence[str]) -> TrialConfig | None:
    """Return a configuration with some settings of another one; None where the backend does not take them together."""
    if "backend" in names:
        return base.model_copy(update={"strategy": other.strategy})
    values = flatten(other)
    try:
        return unflatten(flatten(base) | {name: values[name] for name in names if name in values})
    except (ValueError, KeyError):
        return None
