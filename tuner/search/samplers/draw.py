"""Interface of samplers: each yields configurations in the order in which the sampler prefers to try them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.trial import TrialReason
from shardtune.tuner.history import Observation
from shardtune.tuner.search.space import Space


@dataclass(frozen=True)
class Draw:
    """Configuration proposed by a sampler."""

    config: TrialConfig
    reason: TrialReason | None = None
    """Reason for the proposed configuration; None from a sampler that gives no reasons."""


@dataclass(frozen=True)
class SearchView:
    """Data that a sampler may use: the search space, the trials so far and a random seed."""

    space: Space
    history: Sequence[Observation]
    warm: Sequence[Observation]
    """Trials of another study, their speeds scaled to the level of this study's speeds."""
    taken: Collection[str]
    """Content keys (hashes) of configurations (in canonical form) that the sampler may not propose again."""
    seed: int


Sampler = Callable[[SearchView], Iterator[Draw | None]]
"""Function from the search data to a generator of proposals; the generator yields None for a draw in which the user's
limits left a knob without a legal value."""
