"""What stands beside a verdict: what would settle it, and the answer against each documented default."""

from shardtune.api_schemas.base import Schema


class OpenVerdict(Schema):
    """What would settle an undecided verdict."""

    pairs: int
    won: int
    """Of them, by the candidate."""
    more_pairs: int | None
    """That would confirm it if they go as those so far (`add_pairs` of an extension); None: more than a study may have."""
    disturbed_runs: int = 0
    """Validation runs that count although the machine was disturbed, because they had been repeated often enough."""


class AgainstDefault(Schema):
    """The answer beside a documented default at the fastest micro batch that it was measured with."""

    trial_number: int
    description: str
    micro_batches: tuple[int, ...]
    """That it was measured with."""
    tokens_per_s_per_gpu: float
    runs: int
    """Fresh ones where it has them, else the search's."""
    ratio: float
    """Speed of the answer over its."""
