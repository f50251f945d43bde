"""Runs behind the figures of an answer: the pair in the middle, which shows the gain, and each side's median."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.studies.study_result import Contender, StudyResult
from shardtune.service.wording import study_words
from shardtune.service.wording.answers.trust_line import Trust
from shardtune.service.wording.result_runs import ResultRuns

_EQUAL = 1e-6
"""Relative difference up to which two stored ratios count as equal. Equal ratios may differ a little, because they
were calculated by way of logarithms."""


@dataclass(frozen=True)
class PairSpeeds:
    """Speeds of the two runs of a pair, in tokens per second and GPU."""

    candidate: float
    baseline: float

    @property
    def ratio(self) -> float:
        """Speed of the candidate divided by that of the baseline."""
        return self.candidate / self.baseline


def middle_pair(result: StudyResult, stored: ResultRuns) -> PairSpeeds | None:
    """Return the speeds of the pair of runs with the median ratio; their ratio is the stated speed-up. With an even
    number of pairs, return the geometric means over the two pairs in the middle. None if the runs of the pairs are not
    known."""
    paired, baseline = (result.candidate or result.best).trial_number, result.baseline.trial_number
    if result.speedup is None or not result.speedup.ratios or paired == baseline:
        return None
    ratios, blocks = result.speedup.ratios, sorted(stored.block_speeds.items())
    pairs = [
        PairSpeeds(speeds[paired], speeds[baseline]) for _, speeds in blocks if {paired, baseline} <= speeds.keys()
    ]
    # Blocks that chose the candidate, or whose runs had unequal load, do not count: the pairs are the last that match.
    matching = [pair for pair in pairs if any(math.isclose(pair.ratio, ratio, rel_tol=_EQUAL) for ratio in ratios)]
    count = len(ratios)
    ordered = sorted(matching[-count:], key=lambda pair: pair.ratio)
    if len(ordered) != count or not all(
        math.isclose(pair.ratio, ratio, rel_tol=_EQUAL) for pair, ratio in zip(ordered, sorted(ratios), strict=True)
    ):
        return None
    middle = ordered[(count - 1) // 2 : count // 2 + 1]
    return PairSpeeds(_mean([pair.candidate for pair in middle]), _mean([pair.baseline for pair in middle]))


def _mean(speeds: Sequence[float]) -> float:
    """Return the geometric mean. The ratio of two such means is the geometric mean of the pairs' ratios."""
    return math.exp(fmean(map(math.log, speeds)))


def speed_reasons(result: StudyResult, stored: ResultRuns) -> tuple[Trust, ...]:
    """Return sentences with the speeds of the pair of runs with the median ratio, and with the median speed and number
    of runs of each side."""
    lines, pair = [], middle_pair(result, stored)
    if pair is not None and result.speedup is not None:
        where = "in the middle pair" if len(result.speedup.ratios) % 2 else "in the two middle pairs, on average"
        speeds = f"{study_words.rate(pair.candidate)} against the baseline's {study_words.rate(pair.baseline)}"
        lines.append(f"{where}: {speeds} tokens/s/GPU, which is {result.speedup.value:.2f}×")
    sides = [("baseline", result.baseline)]
    if result.best.trial_number != result.baseline.trial_number:
        sides.insert(0, ("best", result.best))
    elif result.candidate is not None:
        sides.append(("candidate", result.candidate))
    # The one run with whole steps replaces the speeds of short steps, unless other programs disturbed it.
    whole = {check.trial_number for check in result.whole_steps if not check.is_disturbed}
    listed = "; ".join(f"{name} {_speed(side, is_whole=side.trial_number in whole)}" for name, side in sides)
    # The load of a machine changes between pairs: the ratio of two medians is not the median of the pairs' ratios.
    apart = ", which need not divide to the gain of the pairs" if result.speedup is not None else ""
    kind = "speeds" if whole else "medians of all runs"
    lines.append(f"{kind}{apart}: {listed}")
    return tuple(Trust("quiet", line) for line in lines)


def _speed(side: Contender, *, is_whole: bool) -> str:
    speed = f"{study_words.rate(side.tokens_per_s_per_gpu)} tokens/s/GPU"
    if is_whole:
        return f"{speed} in the run that timed whole steps"
    text = f"{speed} in {counted(side.runs, 'run')}"
    return text if side.spread is None else "{} ({} to {})".format(text, *map(study_words.rate, side.spread))
