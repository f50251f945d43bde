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
Base = Literal["baseline", "recommended"]
"""Configuration in which the effect of one change is known: the baseline to which the change was added, or the
recommended configuration from which it was taken."""
SpeedOf = Callable[[TrialConfig], float | None]
"""Function that returns the predicted speed of a configuration; None if its speed cannot be predicted."""


@dataclass(frozen=True)
class SettingChange:
    """Knob, or set of knobs changed together, in which the recommended configuration differs from the user's present
    one (the baseline).
    """

    name: str
    """Name of the changed knob; `backend` stands for all settings of the strategy together."""
    before: KnobValue | None
    after: KnobValue | None
    factor: float | None
    """Speed with this change divided by the speed without it; None if unknown."""
    origin: Origin
    base: Base | None
    """Configuration in which the factor is known; None if it is unknown."""


def changes_of(
    today: TrialConfig, best: TrialConfig, search_speeds: Mapping[TrialConfig, float], predicted: SpeedOf
) -> tuple[SettingChange, ...]:
    """Return the changes of settings from the user's present configuration to the recommended one, the change with
    the largest effect first.

    `search_speeds` contains the speed of each configuration that the study's search measured.
    """
    units = knobs_by_change(flatten(today), flatten(best))
    effects = [(name, *_factor(today, best, names, search_speeds, predicted)) for name, names in units.items()]
    before, after = flatten(today), flatten(best)
    changes = [
        SettingChange(
            name=name,
            before=before.get(name),
            after=after.get(name),
            factor=factor,
            origin=origin,
            base=base,
        )
        for name, factor, origin, base in effects
    ]
    return tuple(sorted(changes, key=lambda change: -(change.factor or 0.0)))


def product_of(changes: Sequence[SettingChange]) -> float | None:
    """Return the product of the effects of all changes; None if the effect of one is unknown."""
    factors = [change.factor for change in changes if change.factor is not None]
    return math.prod(factors) if len(factors) == len(changes) else None


def knobs_by_change(today: Flat, best: Flat) -> dict[str, Sequence[str]]:
    """Return the knobs that have to change together, keyed by the name of the change. If the backend changes, all
    knobs of the strategy are one change; else each knob is a change of its own.
    """
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
) -> tuple[float | None, Origin, Base | None]:
    """Return the speed ratio that one change causes, whether the ratio was measured or predicted, and in which
    configuration. It compares the present configuration with and without the change, or else the recommended one.
    """
    with_it, without_it = with_settings_of(today, best, names), with_settings_of(best, today, names)
    pairs: tuple[tuple[TrialConfig | None, TrialConfig | None, Base], ...] = (
        (with_it, today, "baseline"),
        (best, without_it, "recommended"),
    )
    for new, old, base in pairs:
        if new is None or old is None or not {new, old} <= search_speeds.keys():
            continue
        return search_speeds[new] / search_speeds[old], "measured", base
    fast, slow = predicted(best), None if without_it is None else predicted(without_it)
    return (fast / slow, "predicted", "recommended") if fast and slow else (None, "unknown", None)


def with_settings_of(base: TrialConfig, other: TrialConfig, names: Sequence[str]) -> TrialConfig | None:
    """Return a configuration with some settings replaced by those of another configuration; None if the backend rejects
    the combination.
    """
    if "backend" in names:
        return base.model_copy(update={"strategy": other.strategy})
    values = flatten(other)
    try:
        return unflatten(flatten(base) | {name: values[name] for name in names if name in values})
    except (ValueError, KeyError):
        return None
