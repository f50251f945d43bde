"""Schemas of verdict details: further paired runs that would settle an undecided verdict, and the result compared with
each documented default."""

from shardtune.api_schemas.base import Schema


class OpenVerdict(Schema):
    """Further paired runs that would settle an undecided verdict."""

    pairs: int
    won_pairs: int
    """Number of pairs of runs in which the candidate was faster."""
    more_pairs: int | None
    """Number of further pairs that would confirm the candidate if they resemble the pairs so far (`add_pairs` of an
    extension); None if more than a study may have."""
    disturbed_runs: int = 0
    """Number of validation runs that count although other programs disturbed the machine, because they had already been
    repeated the maximum number of times."""


class AgainstDefault(Schema):
    """Speed of the study's best configuration compared with a documented default, at the fastest micro batch measured
    for the default."""

    trial_number: int
    description: str
    micro_batches: tuple[int, ...]
    """Micro batch sizes with which the default was measured."""
    tokens_per_s_per_gpu: float
    runs: int
    """Number of validation runs of the default, or of its search runs if it has no validation runs."""
    ratio: float
    """Speed of the study's best configuration divided by the default's."""
