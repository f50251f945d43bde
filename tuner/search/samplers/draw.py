"""What every sampler gives: configurations in the order in which it would try them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.trial import TrialReason
from shardtune.tuner.history import Observation
from shardtune.tuner.search.space import Space


@dataclass(frozen=True)
class Draw:
    """One proposal."""

    config: TrialConfig
    reason: TrialReason | None = None
    """Why; None from a sampler that cannot say."""


@dataclass(frozen=True)
class SearchView:
    """All a sampler may look at."""

    space: Space
    history: Sequence[Observation]
    warm: Sequence[Observation]
    """Trials of another study, at this one's level of speed."""
    taken: Collection[str]
    """Content keys of canonical forms that may not be proposed again."""
    seed: int


Sampler = Callable[[SearchView], Iterator[Draw | None]]
"""None: a draw that the user's limits led nowhere."""
