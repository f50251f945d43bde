"""Verdict that the paired runs support for a candidate, and the number of further pairs that would settle an undecided
verdict."""

import math
from collections.abc import Sequence
from statistics import median

from shardtune.api_schemas.studies.budget import MOST_PAIRS
from shardtune.api_schemas.studies.study_result import Speedup, Verdict
from shardtune.api_schemas.studies.verdicts import OpenVerdict
from shardtune.tuner.verdict import paired_test
from shardtune.tuner.verdict.comparison_blocks import Pair
from shardtune.tuner.verdict.paired_test import WORTHWHILE

RULED_OUT = 0.10
"""Relative gain that the paired runs must rule out before a candidate counts as not faster."""


def verdict(pairs: Sequence[Pair], speedup: Speedup | None, is_far_behind: bool = False) -> Verdict:
    """Verdict of the paired runs: the candidate is confirmed, not faster by a worthwhile gain, or undecided because the
    pairs are too few, too noisy or too much disturbed by other programs. Without a pair the verdict is undecided.

    `is_far_behind`: whether undisturbed runs beside the baseline's showed that the candidate is far slower.
    """
    undisturbed = [pair.log_ratio for pair in pairs if not pair.disturbed_runs]
    if speedup is not None and speedup.ci95[0] > 1:
        # The sign test holds under any load, but for the machine as it was: a gain that exists only beside other
        # programs is no answer. So undisturbed pairs must not contradict, and there must be one.
        return Verdict.CONFIRMED if undisturbed and median(undisturbed) > 0 else Verdict.UNDECIDED
    if is_far_behind and undisturbed:
        return Verdict.NOT_FASTER
    # An interval that rules out a large gain is not enough: the gain seen may still be worth a change.
    is_small = bool(pairs) and median(pair.log_ratio for pair in pairs) <= math.log1p(WORTHWHILE)
    is_known = speedup is not None and speedup.ci95[1] < 1 + RULED_OUT
    # "Not faster" is a claim about a size, which no coin protects: programs that starve both sides level them. A median
    # stays among the undisturbed pairs only while these are the majority (its breakdown point).
    is_undisturbed = 2 * len(undisturbed) > len(pairs)
    return Verdict.NOT_FASTER if is_small and is_known and is_undisturbed else Verdict.UNDECIDED


def open_verdict(pairs: Sequence[Pair]) -> OpenVerdict:
    """Counts that explain an undecided verdict: pairs run, pairs won, further pairs that would confirm the candidate,
    and disturbed pairs and runs."""
    count, lost = len(pairs), sum(pair.log_ratio <= 0 for pair in pairs)
    return OpenVerdict(
        pairs=count,
        won_pairs=count - lost,
        more_pairs=_more_pairs(count, lost),
        disturbed_pairs=sum(pair.disturbed_runs > 0 for pair in pairs),
        disturbed_counted_runs=sum(pair.disturbed_runs for pair in pairs),
    )


def _more_pairs(pairs: int, lost: int) -> int | None:
    """Number of further pairs that would confirm the candidate if it keeps losing the same fraction of pairs; None
    above a study's limit."""
    loss_fraction = lost / pairs if pairs else 0.0
    confirming_counts = (
        n for n in range(pairs + 1, MOST_PAIRS + 1) if round(loss_fraction * n) <= paired_test.boundary()[n]
    )
    fewest = next(confirming_counts, None)
    return None if fewest is None else fewest - pairs
