"""Quiet screening: which candidates of a final comparison need no further comparison block, because the machine is quiet.

Screening chooses the candidate that is paired with the baseline. Where runs repeat closely, few comparison blocks show
which candidates cannot be much faster than the leader, and choosing among candidates that are equally fast is worth no
run. So after each block a candidate is eliminated once the upper limit of its advantage over the leader is less than a
worthwhile gain.

The limit is that of an analysis of variance with a speed for each trial and a level for each comparison (Fisher, The
Design of Experiments, 1935, chapter IV: randomised blocks), on log speeds, and holds beside the best of the others (Hsu,
Annals of Statistics 12, 1984). It assumes alike noise, so only undisturbed comparisons count, of runs that state how
far their own windows lie apart. The pairs afterwards have no part in the choice, so an error here costs a gain of more
than 2 % now and then, but confirms no gain that does not exist.
docs/decisions/0015-quiet-screening.md has the alternatives.
"""

import math
from collections.abc import Sequence
from itertools import product
from statistics import fmean

from shardtune.tuner.verdict.comparison_blocks import ComparisonBlocks, UndisturbedComparison
from shardtune.tuner.verdict.paired_test import WORTHWHILE

ERROR = 0.05
"""Probability that a candidate is eliminated at one look although it is faster than all others by a worthwhile gain."""
_QUANTILE = 3.19
"""Quantile of Student's t for the upper limit. The leader is the fastest of all others, so each of k candidates is
compared with k - 1 (Bonferroni): `ERROR` / (k - 1) at k degrees of freedom, which two comparisons give, is exceeded at
2.92 to 3.19 for 2 to 20 candidates. More comparisons would allow less."""
_FEWEST_COMPARISONS = 2
"""Minimum number of comparisons, the search's included: a single one does not show how closely runs repeat."""


def still_open(candidates: tuple[int, ...], baseline: int, blocks: ComparisonBlocks) -> tuple[int, ...]:
    """Candidates that may be faster than the leader by a worthwhile gain, and the leader, in the order given. All
    candidates are returned where the comparisons do not show that the machine is quiet.

    Args:
        candidates: numbers of the trials among which screening still chooses.
        baseline: number of the trial that runs beside them in each comparison block.
        blocks: comparison blocks that were taken so far.
    """
    trials = (baseline, *candidates)
    comparisons = blocks.undisturbed_comparisons(trials)
    if len(candidates) < 2 or len(comparisons) < _FEWEST_COMPARISONS:
        return candidates
    means = {trial: fmean(comparison.log_speeds[trial] for comparison in comparisons) for trial in trials}
    leader = max(candidates, key=lambda trial: means[trial])
    limit = _QUANTILE * _standard_error(trials, comparisons)
    return tuple(
        trial
        for trial in candidates
        if trial == leader or means[trial] - means[leader] + limit > math.log1p(WORTHWHILE)
    )


def _standard_error(trials: Sequence[int], comparisons: Sequence[UndisturbedComparison]) -> float:
    """Standard error of the difference between two trials' mean log speeds."""
    speeds = [comparison.log_speeds for comparison in comparisons]
    of_trial = {trial: fmean(column[trial] for column in speeds) for trial in trials}
    levels = [fmean(column[trial] for trial in trials) for column in speeds]
    overall = fmean(levels)
    residuals = (
        column[trial] - of_trial[trial] - level + overall
        for (column, level), trial in product(zip(speeds, levels, strict=True), trials)
    )
    freedom = (len(trials) - 1) * (len(comparisons) - 1)
    between_runs = math.sqrt(sum(residual**2 for residual in residuals) / freedom)
    # Few residuals may be small by luck, but the runs' own windows bound them: of three windows, the fewest of a run,
    # the half-width of 95 % is 4.3 standard errors.
    spreads = [spread for comparison in comparisons for spread in comparison.spreads]
    within_runs = math.sqrt(fmean(spread**2 for spread in spreads)) / 4.3
    return max(between_runs, within_runs) * math.sqrt(2 / len(comparisons))
