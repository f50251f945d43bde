"""Final comparison: which trials run again, in which order, and what their validation runs decide.

- Without a user's baseline, the documented defaults run against each other, and the fastest becomes the baseline.
- The fastest trials of the search run in comparison blocks, each with one validation run of every remaining
  candidate, and the slower ones are eliminated. The search counts as one more block.
- The last candidate runs in pairs with the baseline until `tuner.verdict.paired_test` decides. The pairs alone make
  the verdict: they had no part in any choice, so one comparison needs protection, however many candidates there were.
- A pair whose runs had unequal load is left out, and another one takes its place (`tuner.verdict.too_busy`).

Everything is derived from the stored runs. Blocks whose runs were on different workers, or on other hosts of one
worker, are left out.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.tuner.verdict import paired_test, too_busy
from shardtune.tuner.verdict.paired_test import Decision
from shardtune.tuner.verdict.too_busy import UNDISTURBED, PairLoads, RunLoad

MAX_CANDIDATES = 20
NEAR_FRACTION = 0.9
"""Fraction of the fastest candidate's speed that a candidate must reach to remain in the final comparison, checked
after the search and after each screening round; also required of the baseline's speed."""
# The first round has the search's run besides its own, so a single disturbed run eliminates no candidate.
ROUNDS = ((1, 8), (1, 4), (2, 1))
"""Screening rounds of a final comparison, as (number of comparison blocks, number of candidates left after them). A
round that would eliminate no candidate is skipped."""

# One search run each would leave it to chance which default everything is compared with.
DEFAULT_BLOCKS = 2
"""Maximum number of comparison blocks that run the documented defaults against each other; after each block, defaults
far behind the fastest are eliminated."""

Decide = Callable[[Sequence[float], int], Decision]
LogSpeeds = dict[int, list[float]]
"""Natural logarithms of the measured speeds of each trial, by trial number, beginning with the search run."""


@dataclass(frozen=True)
class ValidationRun:
    """Complete validation run: a repeat of a trial in the final comparison."""

    trial: int
    comparison_block: int
    worker: str
    tokens_per_s_per_gpu: float
    hosts: frozenset[str] = frozenset()
    """Hosts on which the validation run took place; a worker that spans several hosts may get other hosts for its next
    run."""
    load: RunLoad = UNDISTURBED


@dataclass(frozen=True)
class NextRun:
    """Validation run that the final comparison needs now."""

    trial: int
    comparison_block: int
    arms: tuple[int, ...]
    """Numbers of the trials that take part in the comparison block of this validation run."""


@dataclass(frozen=True)
class RankingState:
    """Progress of a final comparison: the baseline, the challenger, the pairs so far and the next run."""

    baseline: int
    """Number of the baseline trial: the fastest default by search runs, until validation runs of several defaults
    decide."""
    challenger: int | None
    """Number of the trial paired with the baseline; None during screening, and where no candidate was close to the
    baseline's speed."""
    log_ratios: tuple[float, ...]
    """Natural logarithm of the challenger's speed over the baseline's, one number for each pair that counts."""
    next: NextRun | None
    """Next validation run that the final comparison needs; None once the verdict is final."""
    even_loads: tuple[PairLoads, ...] = ()
    """Loads of other programs during the two runs of each pair that counts, in the order of `log_ratios`."""
    uneven_loads: tuple[PairLoads, ...] = ()
    """Loads during the two runs of each pair that was left out because they were unequal."""


def max_runs(candidates: int, most_pairs: int, defaults: int = 0) -> int:
    """Maximum number of validation runs in a final comparison: the case that all pairs are used, no comparison block is
    lost and all candidates and defaults are equally fast."""
    among_defaults = DEFAULT_BLOCKS * defaults if defaults > 1 else 0
    if candidates == 0:
        return among_defaults
    runs, alive = 2 * most_pairs + among_defaults, min(MAX_CANDIDATES, candidates)
    for blocks, kept_count in ROUNDS:
        runs += blocks * alive if alive > kept_count else 0
        alive = min(alive, kept_count)
    return runs


def ranking_state(
    field: Finalists,
    search_speeds: Mapping[int, float],
    runs: Sequence[ValidationRun],
    most_pairs: int,
    salt: str,
    decide: Decide = paired_test.decide,
) -> RankingState:
    """Compute the progress of a final comparison by replaying its complete runs.

    `search_speeds` contains the tokens_per_s_per_gpu of the search runs of the trials in the comparison. `decide`
    decides when the pairs are enough. `salt` (the study's id) seeds the order within comparison blocks.
    """
    assert field.baseline is not None and field.needs_runs
    blocks = _ComparisonBlocks(field, runs, salt)
    log_speeds: LogSpeeds = {trial: [math.log(search_speeds[trial])] for trial in field.members}
    baseline = _find_fastest_default(field, blocks, log_speeds)
    if isinstance(baseline, NextRun):
        return RankingState(field.baseline, None, (), baseline)
    challenger = _screen(field, baseline, blocks, log_speeds)
    if isinstance(challenger, NextRun):
        return RankingState(baseline, None, (), challenger)
    if challenger is None:
        return RankingState(baseline, None, (), None)
    return _run_pairs(baseline, challenger, blocks, most_pairs, decide)


def _run_pairs(
    baseline: int, challenger: int, blocks: "_ComparisonBlocks", most_pairs: int, decide: Decide
) -> RankingState:
    ratios: list[float] = []
    even_loads, uneven_loads = list[PairLoads](), list[PairLoads]()
    next_run: NextRun | None = None
    last = blocks.block + most_pairs
    while blocks.block < last and too_busy.may_go_on(len(uneven_loads), most_pairs):
        if decide(ratios, most_pairs) != "open":
            break
        pair = blocks.take((baseline, challenger))
        if isinstance(pair, NextRun):
            # The block that was left out may have been the last one that the limit on pairs allows.
            next_run = pair if pair.comparison_block < last else None
            break
        loads = blocks.loads_before(baseline, challenger)
        if too_busy.is_even(*loads):
            ratios.append(pair[challenger] - pair[baseline])
            even_loads.append(loads)
        else:
            uneven_loads.append(loads)
            # Another pair takes its place: `most_pairs` limits the pairs that count.
            last += 1
    return RankingState(baseline, challenger, tuple(ratios), next_run, tuple(even_loads), tuple(uneven_loads))


def _find_fastest_default(field: Finalists, blocks: "_ComparisonBlocks", log_speeds: LogSpeeds) -> int | NextRun:
    """Number of the fastest documented default by its validation runs, or the next validation run needed to determine
    it."""
    assert field.baseline is not None
    alive = field.defaults or (field.baseline,)
    for _ in range(DEFAULT_BLOCKS):
        if len(alive) > 1:
            missing_run = blocks.add(alive, log_speeds)
            if missing_run is not None:
                return missing_run
            alive = _fastest(alive, log_speeds, len(alive))
    return max(alive, key=lambda trial: _undisturbed_speed(log_speeds[trial]))


def _screen(
    field: Finalists, baseline: int, blocks: "_ComparisonBlocks", log_speeds: LogSpeeds
) -> int | NextRun | None:
    """Number of the candidate to pair with the baseline, or the next validation run that screening needs; None where no
    candidate was close to the baseline's speed."""
    least = _undisturbed_speed(log_speeds[baseline]) + math.log(NEAR_FRACTION)
    rivals = (trial for trial in field.members if trial != baseline)
    alive = tuple(trial for trial in rivals if _undisturbed_speed(log_speeds[trial]) >= least)
    if not alive:
        return None
    for count, kept_count in ROUNDS:
        if len(alive) <= kept_count:
            continue
        for _ in range(count):
            missing_run = blocks.add(alive, log_speeds)
            if missing_run is not None:
                return missing_run
        alive = _fastest(alive, log_speeds, kept_count)
    return alive[0]


def _fastest(alive: Sequence[int], speeds_by_trial: LogSpeeds, keep: int) -> tuple[int, ...]:
    """Numbers of the at most `keep` trials with the fastest undisturbed runs, in the order of the search."""
    speeds = {trial: _undisturbed_speed(speeds_by_trial[trial]) for trial in alive}
    ranked = sorted(alive, key=lambda trial: -speeds[trial])[:keep]
    least = speeds[ranked[0]] + math.log(NEAR_FRACTION)
    return tuple(trial for trial in alive if trial in ranked and speeds[trial] >= least)


def _undisturbed_speed(log_speeds: Sequence[float]) -> float:
    """Mean of the faster half of a trial's log speeds, so that disturbed runs do not count."""
    # A disturbance only ever slows a run down, so the slower half carries the disturbances.
    fastest = sorted(log_speeds, reverse=True)
    return fmean(fastest[: (len(fastest) + 1) // 2])


class _ComparisonBlocks:
    """Comparison blocks of a final comparison, in order; each block has one run of every remaining candidate."""

    def __init__(self, field: Finalists, runs: Sequence[ValidationRun], salt: str) -> None:
        self.block = 0
        self._arms = field.members
        self._salt = salt
        self._runs: dict[int, list[ValidationRun]] = {}
        for run in runs:
            self._runs.setdefault(run.comparison_block, []).append(run)

    def add(self, arms: Sequence[int], log_speeds: LogSpeeds) -> NextRun | None:
        """Append the speeds of the next complete comparison block to `log_speeds` and return None, or return the run
        that is missing from the block."""
        block_speeds = self.take(arms)
        if isinstance(block_speeds, NextRun):
            return block_speeds
        for trial in arms:
            log_speeds[trial].append(block_speeds[trial])
        return None

    def take(self, arms: Sequence[int]) -> dict[int, float] | NextRun:
        """Log speeds of the next complete comparison block by trial number, or the run that is missing from the
        block."""
        # Speeds of two machines do not compare, so a block that changed the machine is skipped.
        while len({(run.worker, run.hosts) for run in self._runs.get(self.block, ())}) > 1:
            self.block += 1
        speeds = {run.trial: math.log(run.tokens_per_s_per_gpu) for run in self._runs.get(self.block, ())}
        missing = [trial for trial in self._order() if trial in arms and trial not in speeds]
        if missing:
            return NextRun(missing[0], self.block, tuple(arms))
        self.block += 1
        return speeds

    def loads_before(self, first: int, second: int) -> PairLoads:
        """Loads during the runs of two trials in the block that was taken last."""
        loads = {run.trial: run.load for run in self._runs[self.block - 1]}
        return loads[first], loads[second]

    def _order(self) -> list[int]:
        """Random order in which the trials of a comparison block run, drawn anew for each block."""
        # The random order makes the sign of a pair a fair coin when the two are alike.
        return random.Random(f"{self._salt}:{self.block}").sample(self._arms, len(self._arms))
