"""Encoding: configurations as rows of numbers, so that the guided sampler can infer the speed of similar configurations
from a trial."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.tuner.search.space.backends.registry import KNOBS
from shardtune.tuner.search.space.legal_values import COMMON, Flat

Array = NDArray[np.float64]
Rows = NDArray[np.intp]
# Such a knob changes the speed by percents, and a trial that differs in nothing else adds little information.
_FINE = 0.25
"""Weight of a knob in the similarity of configurations if the knob tunes one backend and places no model state (such as
a bucket's size). All other knobs weigh 1."""


@dataclass(frozen=True)
class _Numbers:
    """Encoder of a numeric knob as one column: the value's position between the smallest and the largest, on a
    logarithmic scale."""

    low: float
    high: float

    def columns(self, value: KnobValue | None) -> tuple[float, ...]:
        if value is None or isinstance(value, bool | str):
            return (0.0,)
        # Clipped: a trial of another study may lie far outside this study's range.
        return (min(1.5, max(-0.5, (_log(value) - self.low) / (self.high - self.low))),)


@dataclass(frozen=True)
class _Words:
    """Encoder of a knob whose values have no order: one column for each value."""

    words: tuple[KnobValue, ...]

    def columns(self, value: KnobValue | None) -> tuple[float, ...]:
        return tuple(float(value == word and isinstance(value, bool) == isinstance(word, bool)) for word in self.words)


class KnobEncoder:
    """Encoder of every knob that differs among some configurations; where the backend of a configuration lacks a knob,
    its columns are 0."""

    def __init__(self, tables: Sequence[Flat]) -> None:
        values: dict[str, dict[KnobValue, None]] = {}
        for table in tables:
            for knob, value in table.items():
                values.setdefault(knob, {})[value] = None
        self._knobs: Mapping[str, _Numbers | _Words] = {
            knob: _choose_encoder(tuple(distinct)) for knob, distinct in values.items() if len(distinct) > 1
        }

    def encode(self, tables: Sequence[Flat]) -> tuple[Array, Array]:
        """Encode configurations as two arrays with one row each: by the knobs that every backend has, and by all
        knobs."""
        shared = [knob for knob in self._knobs if knob in COMMON]
        return self._rows(tables, shared), self._rows(tables, list(self._knobs))

    def _rows(self, tables: Sequence[Flat], knobs: Sequence[str]) -> Array:
        weights = {
            knob: _FINE if knob in KNOBS and knob not in COMMON and not KNOBS[knob].places_states else 1.0
            for knob in knobs
        }
        rows = [
            [weights[knob] * x for knob in knobs for x in self._knobs[knob].columns(table.get(knob))]
            for table in tables
        ]
        width = sum(len(self._knobs[knob].columns(None)) for knob in knobs)
        return np.array(rows, dtype=float).reshape(len(tables), width)


def _choose_encoder(values: tuple[KnobValue, ...]) -> _Numbers | _Words:
    numbers = [_log(value) for value in values if not isinstance(value, bool | str)]
    if len(numbers) < len(values):
        return _Words(values)
    return _Numbers(min(numbers), max(numbers))


def _log(value: float) -> float:
    return math.log2(1.0 + max(0.0, value))
