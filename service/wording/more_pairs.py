"""Number of further paired runs that an open verdict takes, for the pages and the command line."""

import math
from dataclasses import dataclass

from shardtune.api_schemas.studies.budget import MOST_PAIRS
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.studies.study_state import StudyState

FEWEST_MORE_PAIRS = 6
"""Minimum number of additional paired runs to propose. With this number, the candidate can be slower in one of the
pairs and still win."""


@dataclass(frozen=True)
class MorePairs:
    """Additional paired runs that should decide an open verdict."""

    pairs: int
    """Number of pairs to add, including spare pairs in case the candidate is slower in some."""
    needed: int
    """Number of additional pairs that would decide the verdict if the candidate is faster in all of them."""
    waits_for_quiet: bool
    """Whether the runs have to wait for a quiet machine."""


def more_pairs(study: Study, result: StudyResult) -> MorePairs | None:
    """Return the additional paired runs that should decide a verdict; None if the verdict is decided, or more pairs
    would not help."""
    if study.state is StudyState.CANCELLED:
        # An extended study that was cancelled keeps its earlier answer, but cannot be extended again.
        return None
    compared = result.final_comparison
    if study.state is StudyState.FAILED and compared is not None and compared.number != study.final_comparison:
        # Extended by trials, it left the comparison of this answer, and then failed: pairs cannot go on with it.
        return None
    allowed = MOST_PAIRS - study.spec.budget.max_pairs
    if result.too_busy is not None:
        needed = math.ceil(result.too_busy.missing_runs / 2)
        # Disturbed runs of the search chose the candidates: pairs of these decide nothing.
        if result.too_busy.rests_on != "pairs" or needed > allowed:
            return None
        return MorePairs(needed, needed, waits_for_quiet=True)
    if result.undecided is None or result.undecided.more_pairs is None or result.undecided.more_pairs > allowed:
        return None
    needed = result.undecided.more_pairs
    # The final comparison ends with the pair that confirms: an allowance for lost pairs costs nothing where none is lost.
    return MorePairs(min(max(needed, FEWEST_MORE_PAIRS), allowed), needed, waits_for_quiet=False)
