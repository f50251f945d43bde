"""What paired runs say of a candidate, in three words, and what would settle it where they leave it open."""

import math
from collections.abc import Sequence
from statistics import median

from shardtune.api_schemas.studies.study import MOST_PAIRS, Speedup, Verdict
from shardtune.api_schemas.studies.verdicts import OpenVerdict
from shardtune.tuner.verdict import paired_test
from shardtune.tuner.verdict.paired_test import WORTHWHILE

RULED_OUT = 0.10
"""A candidate counts as not faster where its pairs rule a gain of this size out."""


def verdict(log_ratios: Sequence[float], speedup: Speedup | None) -> Verdict:
    """Confirmed, or not faster by anything worth having, or undecided: it may be, and the pairs were too few or too noisy."""
    if speedup is not None and speedup.ci95[0] > 1:
        return Verdict.CONFIRMED
    is_small = bool(log_ratios) and median(log_ratios) <= math.log1p(WORTHWHILE)
    is_known = speedup is not None and speedup.ci95[1] < 1 + RULED_OUT
    return Verdict.NOT_FASTER if is_small and is_known else Verdict.UNDECIDED


def what_is_open(log_ratios: Sequence[float], disturbed: int) -> OpenVerdict:
    """Of an undecided verdict; `disturbed` of its validation runs count although the machine was."""
    pairs, lost = len(log_ratios), sum(ratio <= 0 for ratio in log_ratios)
    return OpenVerdict(pairs=pairs, won=pairs - lost, more_pairs=_more_pairs(pairs, lost), disturbed_runs=disturbed)


def _more_pairs(pairs: int, lost: int) -> int | None:
    """How many more would confirm it if they are lost as often as those so far; None: more than a study may have."""
    share = lost / pairs if pairs else 0.0
    enough = (n for n in range(pairs + 1, MOST_PAIRS + 1) if round(share * n) <= paired_test.boundary()[n])
    found = next(enough, None)
    return None if found is None else found - pairs
