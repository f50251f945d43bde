"""What the trials of a study say together: speed against memory, and which knobs mattered."""

from typing import Literal

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig


class ParetoPoint(Schema):
    """A trial that no other beats in both speed and memory, by its search run."""

    trial_number: int
    config: TrialConfig
    description: str
    """The strategy in words."""
    tokens_per_s_per_gpu: float
    peak_memory_gib: float


class ParetoFront(Schema):
    """The best speed for each amount of memory. Single runs of the search, not the pairs that make a verdict."""

    points: tuple[ParetoPoint, ...]
    """By rising memory, and so by rising speed."""
    memory: Literal["reserved", "allocated"] | None
    """What `peak_memory_gib` is: what the allocator reserved (GPUs), or tensors (CPU ranks); None without any point."""
    limit_gib: float
    """What one rank may take under the study's objective."""
    trials: int
    """Complete trials among which the front was looked for."""


class KnobImportance(Schema):
    """How much a knob had to do with being among the fastest trials."""

    knob: str
    importance: float
    """Share of the sum over all knobs."""
    is_above_chance: bool
    """More than in each of 19 shufflings of the speeds, which a knob that does nothing passes one time in twenty."""
    trials: int
    """Of the trials looked at, those that have the knob: one of a single backend says something within it only."""


class Importance(Schema):
    """Which knobs mattered for speed among the feasible trials (PED-ANOVA)."""

    knobs: tuple[KnobImportance, ...]
    """The most important first; empty where nothing can be said."""
    trials: int
    """Complete trials looked at."""
    fastest: int
    """How many of them count as the fastest."""
    reason: str | None = None
    """Why nothing can be said."""
