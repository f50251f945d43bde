"""Schemas of verdict details: further paired runs that would settle an undecided verdict, and the result compared with
each documented default."""

from shardtune.api_schemas.base import Schema


class OpenVerdict(Schema):
    """Further paired runs that would settle an undecided verdict."""

    pairs: int
    won: int
    """Number of pairs of runs in which the candidate was faster."""
    more_pairs: int | None
    """Number of further pairs that would confirm the candidate if they resemble the pairs so far (`add_pairs` of an
    extension); None if more than a study may have."""
    disturbed_pairs: int = 0
    """Number of these pairs in which at least one run was disturbed."""
    disturbed_runs: int = 0
    """Number of runs in these pairs that count although other programs disturbed the machine, because they had already
    been repeated the maximum number of times."""


class AgainstDefault(Schema):
    """Speed of the study's best configuration compared with a documented default, at the fastest micro batch measured
    for the default."""

    trial_number: int
    description: str
    micro_batches: tuple[int, ...]
    """Micro batch sizes with which the default was measured."""
    tokens_per_s_per_gpu: float
    runs: int
    """Number of validation runs of the default, or 1 for its search run."""
    ratio: float
    """Speed of the study's best configuration divided by the default's: both of validation runs, or both of search
    runs."""
    is_by_search_runs: bool = False
    """Whether both speeds are those of the search runs, because the default has no validation runs."""
    is_disturbed: bool = False
    """Whether one of the compared runs counts although other programs disturbed its machine."""
