"""Knobs of every backend, and configurations as tables of knob values.

A knob is declared on its field in `api_schemas/strategies`; a backend's module has its candidate values that depend on
the study, and conditions that no declaration can state.
"""

from shardtune.api_schemas.knobs import Knob, knobs_of
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.search_space import KnobValue

Flat = dict[str, KnobValue]
"""Configuration as a flat table: value by knob name, `backend` included."""

COMMON: dict[str, Knob] = knobs_of(TrialConfig)
"""Knobs that every backend has, by name."""
