"""Insights from all trials of a study: speed against memory, and the importance of knobs."""

from typing import Literal

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig


class ParetoPoint(Schema):
    """Trial that no other beats in both speed and memory, by its search run."""

    trial_number: int
    config: TrialConfig
    description: str
    """Strategy in words."""
    tokens_per_s_per_gpu: float
    peak_memory_gib: float


class ParetoFront(Schema):
    """Best speed for each amount of memory, by single runs of the search, not by the pairs that make a verdict."""

    points: tuple[ParetoPoint, ...]
    """Points by rising memory, and so by rising speed."""
    memory: Literal["reserved", "allocated"] | None
    """Kind of `peak_memory_gib`: memory that the allocator reserved (GPUs), or tensors (CPU ranks); None without any
    point."""
    limit_gib: float
    """Memory that one rank may take under the study's objective."""
    trials: int
    """Number of complete trials that were considered."""


class KnobImportance(Schema):
    """Importance of a knob for being among the fastest trials."""

    knob: str
    importance: float
    """Fraction of the sum over all knobs."""
    is_above_chance: bool
    """Whether the importance is higher than in each of 19 shufflings of the speeds. A knob without effect passes one
    time in twenty."""
    trials: int
    """Number of considered trials that have the knob. The importance of a knob of a single backend is about that
    backend only."""


class Importance(Schema):
    """Importance of knobs for speed among the feasible trials (PED-ANOVA)."""

    knobs: tuple[KnobImportance, ...]
    """Knobs, most important first; empty where nothing can be said."""
    trials: int
    """Number of complete trials that were considered."""
    fastest: int
    """Number of trials that count as the fastest."""
    reason: str | None = None
    """Reason why nothing can be said."""
