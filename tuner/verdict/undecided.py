"""Verdict that the paired runs support for a candidate, and the number of further pairs that would settle an undecided
verdict."""

import math
from collections.abc import Sequence
from statistics import median

from shardtune.api_schemas.studies.study import MOST_PAIRS, Speedup, Verdict
from shardtune.api_schemas.studies.verdicts import OpenVerdict
from shardtune.tuner.verdict import paired_test
from shardtune.tuner.verdict.paired_test import WORTHWHILE

RULED_OUT = 0.10
"""Relative gain that the paired runs must rule out before a candidate counts as not faster."""


def verdict(log_ratios: Sequence[float], speedup: Speedup | None) -> Verdict:
    """Verdict of the paired runs: the candidate is confirmed, not faster by a worthwhile gain, or undecided because
    pairs are too few or too noisy."""
    if speedup is not None and speedup.ci95[0] > 1:
        return Verdict.CONFIRMED
    # An interval that rules out a large gain is not enough: the gain seen may still be worth a change.
    is_small = bool(log_ratios) and median(log_ratios) <= math.log1p(WORTHWHILE)
    is_known = speedup is not None and speedup.ci95[1] < 1 + RULED_OUT
    return Verdict.NOT_FASTER if is_small and is_known else Verdict.UNDECIDED


def open_verdict(log_ratios: Sequence[float], disturbed: int) -> OpenVerdict:
    """Counts that explain an undecided verdict: pairs run, pairs won, further pairs that would confirm the candidate,
    and disturbed runs.

    `disturbed`: validation runs that count although their machine was disturbed.
    """
    pairs, lost = len(log_ratios), sum(ratio <= 0 for ratio in log_ratios)
    return OpenVerdict(
        pairs=pairs, won_pairs=pairs - lost, more_pairs=_more_pairs(pairs, lost), disturbed_runs=disturbed
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
