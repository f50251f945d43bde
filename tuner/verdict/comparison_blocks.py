"""Comparison blocks of a final comparison: runs of several trials directly after each other, and what they say about
two trials.

Only like is compared with like: the runs of two trials in one block, or their two search runs. A search run never
stands against a validation run, because the machine may have carried another load.
"""

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.tuner.verdict.run_load import UNDISTURBED, PairLoads, RunLoad, is_even

NEAR_FRACTION = 0.9
"""Fraction of another trial's speed below which a trial counts as far behind it. In the search, a candidate must reach
this fraction of the fastest candidate's speed to become a finalist."""
_FEWEST_COMPARISONS = 2
"""Minimum number of comparisons, the search runs' included, that can show a trial to be far behind: a single one may
have coincided with an unnoticed burst of other load."""

LogSpeeds = dict[int, list[float]]
"""Measured speeds as natural logarithms: for each trial number a list that begins with the search run."""


@dataclass(frozen=True)
class ValidationRun:
    """Complete validation run: a repeat of a trial in the final comparison."""

    trial: int
    comparison_block: int
    worker: str
    tokens_per_s_per_gpu: float
    hosts: frozenset[str] = frozenset()
    """Hosts on which the validation run took place; a worker of several hosts may get other hosts for each run."""
    load: RunLoad = UNDISTURBED


@dataclass(frozen=True)
class NextRun:
    """Validation run (repeat of a trial) that the final comparison needs next."""

    trial: int
    comparison_block: int
    arms: tuple[int, ...]
    """Numbers of the trials that run once each in the comparison block to which this validation run belongs."""


@dataclass(frozen=True)
class Pair:
    """Two runs of one comparison block (in which each remaining trial runs once): the challenger's and the
    baseline's."""

    log_ratio: float
    """Natural logarithm of the challenger's speed over the baseline's."""
    loads: PairLoads = (UNDISTURBED, UNDISTURBED)
    """Load that other programs caused during each of the two runs."""
    is_challenger_first: bool | None = None
    """Whether the challenger ran before the baseline; None where the order is not known."""

    @property
    def disturbed_runs(self) -> int:
        """Number of the pair's runs (0 to 2) that other programs disturbed."""
        return sum(load.is_disturbed for load in self.loads)

    @property
    def is_even(self) -> bool:
        """Whether both runs had the same conditions: neither was disturbed, or other programs left about the same
        number of cores to both."""
        return is_even(*self.loads)


@dataclass(frozen=True)
class UndisturbedComparison:
    """Undisturbed runs of several trials under the same conditions: those of one comparison block, or the search's."""

    log_speeds: Mapping[int, float]
    """Natural logarithm of each trial's speed, by trial number."""
    spreads: tuple[float, ...]
    """Spread of each run (`RunLoad.spread`); empty for the search's runs."""


class ComparisonBlocks:
    """Comparison blocks of a final comparison, in order; each block has one run of every remaining trial."""

    def __init__(
        self,
        field: Finalists,
        search_speeds: Mapping[int, float],
        disturbed_searches: Collection[int],
        runs: Sequence[ValidationRun],
        salt: str,
    ) -> None:
        self.block = 0
        self.lost_blocks = 0
        """Number of comparison blocks left out because the runs of one block were on different workers or hosts."""
        self._arms = field.members
        self._salt = salt
        self._search = {trial: math.log(search_speeds[trial]) for trial in field.members}
        self._disturbed_searches = set(disturbed_searches)
        self._taken: dict[int, dict[int, ValidationRun]] = {}
        """Runs of each complete comparison block so far, by the number of the block and then by the number of the
        trial."""
        self._runs: dict[int, list[ValidationRun]] = {}
        for run in runs:
            self._runs.setdefault(run.comparison_block, []).append(run)

    def take(self, arms: Sequence[int]) -> dict[int, ValidationRun] | NextRun:
        """Take the next comparison block. If the block is complete, return its runs by trial number; otherwise, return
        the run that it still needs."""
        # Speeds of two machines do not compare, so a block that changed the machine is skipped.
        while len({(run.worker, run.hosts) for run in self._runs.get(self.block, ())}) > 1:
            self.block += 1
            self.lost_blocks += 1
        runs = {run.trial: run for run in self._runs.get(self.block, ())}
        missing = [trial for trial in self._order() if trial in arms and trial not in runs]
        if missing:
            return NextRun(missing[0], self.block, tuple(arms))
        self._taken[self.block] = runs
        self.block += 1
        return runs

    def take_rest(self) -> None:
        """Take all further comparison blocks that have runs. They may be incomplete, since no further runs are added
        after a failed run."""
        while any(block >= self.block for block in self._runs):
            self.take(())

    def pairs(self, challenger: int, baseline: int) -> tuple[Pair, ...]:
        """Pairs of runs of two trials, one pair from each comparison block in which both trials ran."""
        return tuple(
            _pair(runs, challenger, baseline)
            for runs in self._taken.values()
            if challenger in runs and baseline in runs
        )

    def pairs_by_evenness(self, challenger: int, baseline: int) -> tuple[tuple[Pair, ...], tuple[Pair, ...]]:
        """Pairs of runs of two trials: those with equal load from other programs, and those with unequal load."""
        pairs = self.pairs(challenger, baseline)
        return tuple(pair for pair in pairs if pair.is_even), tuple(pair for pair in pairs if not pair.is_even)

    def undisturbed_comparisons(self, trials: Collection[int]) -> list[UndisturbedComparison]:
        """Comparisons in which all these trials ran undisturbed: the comparison blocks taken so far whose runs were not
        throttled and state their spread and, if there is one, the search. Whether a search run was throttled is not
        known here."""
        comparisons = [
            UndisturbedComparison(
                {trial: math.log(runs[trial].tokens_per_s_per_gpu) for trial in trials},
                tuple(runs[trial].load.spread or 0.0 for trial in trials),
            )
            for runs in self._taken.values()
            if all(trial in runs and _is_quiet(runs[trial].load) for trial in trials)
        ]
        if comparisons and not self._disturbed_searches & set(trials):
            comparisons.append(UndisturbedComparison({trial: self._search[trial] for trial in trials}, ()))
        return comparisons

    def is_far_behind(self, trial: int, other: int) -> bool:
        """Whether a trial is far slower than another trial, judged only by undisturbed validation runs made side by
        side."""
        least = math.log(NEAR_FRACTION)
        fresh = [pair.log_ratio for pair in self.pairs(trial, other) if not pair.disturbed_runs]
        if not fresh or max(fresh) >= least:
            return False
        if len(fresh) >= _FEWEST_COMPARISONS:
            return True
        is_like = not {trial, other} & self._disturbed_searches
        return is_like and self._search[trial] - self._search[other] < least

    def scores(self, trials: Sequence[int]) -> dict[int, float]:
        """Score of each trial, by which trials are ranked: the mean of the logarithms of speed of the faster half of its runs."""
        undisturbed = [self._search[trial] for trial in trials if trial not in self._disturbed_searches]
        # A disturbance only slows a run down, so a disturbed search run says nothing against a trial beside undisturbed
        # ones: it counts as a typical one. Where all were disturbed, they are alike.
        typical = median(undisturbed) if undisturbed else -math.inf
        speeds: LogSpeeds = {
            trial: [max(self._search[trial], typical) if trial in self._disturbed_searches else self._search[trial]]
            for trial in trials
        }
        for runs in self._taken.values():
            for trial in trials:
                speeds[trial] += [math.log(runs[trial].tokens_per_s_per_gpu)] if trial in runs else []
        return {trial: _undisturbed_speed(values) for trial, values in speeds.items()}

    def _order(self) -> list[int]:
        """Random order in which the trials of a comparison block run, drawn anew for each block."""
        # The random order makes the sign of a pair a fair coin when the two are alike.
        return random.Random(f"{self._salt}:{self.block}").sample(self._arms, len(self._arms))


def _pair(runs: Mapping[int, ValidationRun], challenger: int, baseline: int) -> Pair:
    """Pair the runs of two trials of one comparison block. `runs` are in the order in which they ran, so they show
    which of the two trials ran first."""
    order, first, second = list(runs), runs[challenger], runs[baseline]
    ratio = math.log(first.tokens_per_s_per_gpu) - math.log(second.tokens_per_s_per_gpu)
    return Pair(ratio, (first.load, second.load), order.index(challenger) < order.index(baseline))


def _is_quiet(load: RunLoad) -> bool:
    return load.spread is not None and not load.is_disturbed and not load.is_throttled


def _undisturbed_speed(log_speeds: Sequence[float]) -> float:
    """Mean of the faster half of a trial's log speeds, so that disturbed runs do not count."""
    # A disturbance only ever slows a run down, so the slower half carries the disturbances.
    fastest = sorted(log_speeds, reverse=True)
    return fmean(fastest[: (len(fastest) + 1) // 2])
