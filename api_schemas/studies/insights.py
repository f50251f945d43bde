"""Schemas of analyses over all trials of a study: the Pareto front of speed and memory, and the importance of knobs."""

from typing import Literal

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig


class ParetoPoint(Schema):
    """Trial on the Pareto front: no other trial is better in both speed and memory, as measured in search runs."""

    trial_number: int
    config: TrialConfig
    description: str
    """Short description of the trial's configuration for people."""
    tokens_per_s_per_gpu: float
    peak_memory_gib: float


class ParetoFront(Schema):
    """Pareto front of a study: the best speed for each amount of memory, by single search runs and not by the paired
    runs of the verdict."""

    points: tuple[ParetoPoint, ...]
    """Points of the Pareto front by ascending memory, and therefore by ascending speed."""
    memory: Literal["reserved", "allocated"] | None
    """Kind of memory in `peak_memory_gib`: reserved by the allocator (GPUs), or used by tensors (CPU ranks); None if
    there are no points."""
    limit_gib: float
    """Memory in GiB that one rank may use under the study's objective."""
    trials: int
    """Number of complete trials from which the Pareto front was calculated."""


class KnobImportance(Schema):
    """Importance of a knob: its effect on whether a trial is among the fastest."""

    knob: str
    importance: float
    """Importance of the knob as a fraction of the sum over all knobs."""
    is_above_chance: bool
    """Whether the knob's importance is higher than in each of 19 random permutations of the speeds; a knob without
    effect passes by chance once in twenty times."""
    trials: int
    """Number of considered trials that have the knob. For a knob of a single backend, the importance refers to this
    backend only."""


class Importance(Schema):
    """Importance of each knob for the speed of a study's feasible trials (PED-ANOVA)."""

    knobs: tuple[KnobImportance, ...]
    """Knobs with their importance, most important first; empty if no importance can be calculated."""
    trials: int
    """Number of complete trials from which importance was calculated."""
    fastest: int
    """Number of trials that count as the fastest ones."""
    reason: str | None = None
    """Reason why no importance can be calculated."""
