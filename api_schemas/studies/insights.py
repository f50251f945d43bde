"""Schemas of analyses over all trials of a study: the Pareto front of speed and memory, and the importance of knobs."""

from typing import Literal

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig


class ParetoPoint(Schema):
    """Trial on the Pareto front, which means that no other trial has both a higher speed and a lower peak memory. Both
    were measured in a single search run."""

    trial_number: int
    config: TrialConfig
    description: str
    """Short description of the trial's configuration for people."""
    tokens_per_s_per_gpu: float
    peak_memory_gib: float


class ParetoFront(Schema):
    """Pareto front of a study: the highest speed reached for each amount of memory. Speeds are those of single search
    runs, not of the paired runs behind the verdict."""

    points: tuple[ParetoPoint, ...]
    """Points of the Pareto front by ascending memory, and therefore by ascending speed."""
    memory: Literal["reserved", "allocated"] | None
    """Meaning of `peak_memory_gib`: memory reserved by the allocator (on GPUs), or memory of tensors (on CPU ranks).
    None if there are no points."""
    limit_gib: float
    """Memory in GiB that one rank may use; the part that the study's objective keeps free is already subtracted."""
    trials: int
    """Number of complete trials among which the Pareto front was sought."""


class KnobImportance(Schema):
    """Importance of a knob: how strongly its value decides whether a trial is among the fastest."""

    knob: str
    importance: float
    """Importance of the knob, as a fraction of the sum of the importances of all knobs."""
    is_above_chance: bool
    """Whether the knob's importance is higher than in each of 19 repetitions in which the speeds of the trials were
    shuffled at random. A knob without any effect passes this test once in twenty times."""
    trials: int
    """Number of considered trials in which the knob exists. If only one backend has the knob, its importance refers to
    trials of that backend."""


class Importance(Schema):
    """Importance of each knob for the speed of a study's feasible trials (PED-ANOVA)."""

    knobs: tuple[KnobImportance, ...]
    """Knobs with their importance, most important first; empty if no importance can be calculated."""
    trials: int
    """Number of complete trials from which importance was calculated."""
    fastest: int
    """Number of trials that are counted as the fastest ones when importance is calculated."""
    reason: str | None = None
    """Reason why the importance of knobs cannot be calculated; None if it can."""
