"""Interface of samplers: each yields configurations in the order in which it would try them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.trial import TrialReason
from shardtune.tuner.history import Observation
from shardtune.tuner.search.space import Space


@dataclass(frozen=True)
class Draw:
    """Proposal of a sampler."""

    config: TrialConfig
    reason: TrialReason | None = None
    """Reason for the proposal; None from a sampler that gives none."""


@dataclass(frozen=True)
class SearchView:
    """Data that a sampler may use."""

    space: Space
    history: Sequence[Observation]
    warm: Sequence[Observation]
    """Trials of another study, scaled to this one's level of speed."""
    taken: Collection[str]
    """Content keys of canonical forms that may not be proposed again."""
    seed: int


Sampler = Callable[[SearchView], Iterator[Draw | None]]
"""Generator of proposals; None for a draw that the user's limits led nowhere."""
