"""Dominance: postpones untried configurations that would probably run out of memory, because similar configurations
did.

Dominance only orders the trials and excludes none: an allocator may fragment less with other buckets and prefetch
depths.
"""

from collections.abc import Iterable, Sequence

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.tuner.history import Observation
from shardtune.tuner.search.space import Space
from shardtune.tuner.search.space.backends.registry import KNOBS
from shardtune.tuner.search.space.legal_values import Flat

_PLACEMENT = ("backend", *(name for name, knob in KNOBS.items() if knob.places_states))
_RISING = {name: knob.memory_order for name, knob in KNOBS.items() if knob.memory_order}
_NUMBERS = tuple(name for name, knob in KNOBS.items() if knob.grows_memory)
_TOO_LARGE = (FailureKind.OOM, FailureKind.OVER_LIMIT)


def oversized_configs(history: Iterable[Observation], space: Space) -> list[Flat]:
    """Configurations of this study's trials that used more memory than was available, each as a flat table of knobs in
    canonical form."""
    return [
        space.flatten(space.canonical(obs.config))
        for obs in history
        if obs.failure is not None and obs.failure.kind in _TOO_LARGE
    ]


def probably_too_large(config: TrialConfig, oversized: Sequence[Flat], space: Space) -> bool:
    """Whether a configuration probably runs out of memory: an earlier trial with the same placement of model states ran
    out of memory, and no knob of this configuration has a value that uses less memory than in that trial."""
    table = space.flatten(config)
    return any(_needs_at_least(table, oversized_table) for oversized_table in oversized)


def _needs_at_least(table: Flat, oversized_table: Flat) -> bool:
    # Memory of two configurations compares only where model states are placed alike.
    if any(table.get(knob) != oversized_table.get(knob) for knob in _PLACEMENT):
        return False
    if any(
        int(table[knob]) < int(oversized_table[knob]) for knob in _NUMBERS if knob in table and knob in oversized_table
    ):
        return False
    if table.get("reshard_after_forward") is True and oversized_table.get("reshard_after_forward") is not True:
        return False
    return all(
        values.index(table[knob]) >= values.index(oversized_table[knob])
        for knob, values in _RISING.items()
        if knob in table and knob in oversized_table
    )
