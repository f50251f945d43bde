"""Details of a verdict: pairs that would settle it, and the answer against each documented default."""

from shardtune.api_schemas.base import Schema


class OpenVerdict(Schema):
    """Pairs that would settle an undecided verdict."""

    pairs: int
    won: int
    """Number of the pairs that the candidate won."""
    more_pairs: int | None
    """Further pairs that would confirm it if they go as those so far (`add_pairs` of an extension); None: more than
    a study may have."""
    disturbed_runs: int = 0
    """Validation runs that count although the machine was disturbed, because they had been repeated often enough."""


class AgainstDefault(Schema):
    """Answer beside a documented default at the fastest micro batch that it was measured with."""

    trial_number: int
    description: str
    micro_batches: tuple[int, ...]
    """Micro batches that the default was measured with."""
    tokens_per_s_per_gpu: float
    runs: int
    """Number of validation runs where the default has them, else of search runs."""
    ratio: float
    """Speed of the answer over the default's."""
