"""Final comparison: which trials are run again, in which order, and what their validation runs decide.

Where the user gave no baseline, the documented defaults run against each other first: one run each in the search would leave
it to chance which of them everything is held against. Then the fastest trials of the search run against each other in blocks, each block every remaining candidate once, and
the slower ones are eliminated: the search picked them by one value each, and the luck in it. The search counts as one more
block. What disturbs a run slows it down, so only the faster half of a candidate's runs is compared, by its mean. The one
that is left then runs in pairs with the baseline, until `tuner.verdict.paired_test` knows. The pairs alone make the verdict: they
had no part in any choice, so there is a single comparison to protect however many candidates there were.

Everything follows from the stored runs. Blocks whose runs were on different workers, or on other hosts of one, are left out.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.tuner.verdict import paired_test
from shardtune.tuner.verdict.paired_test import Decision

MOST_CANDIDATES = 20
NEAR = 0.9
"""Candidates reach this share of the fastest one's speed, in the search and after each round of screening, and of the baseline's."""
ROUNDS = ((1, 8), (1, 4), (2, 1))
"""Blocks of each round, and the candidates left after it. A round that would eliminate nobody is left out. With the search's
run nobody is eliminated for a single disturbed one."""

DEFAULT_BLOCKS = 2
"""Of the defaults against each other, at most; after each, those far behind are left out."""

Decide = Callable[[Sequence[float], int], Decision]
Seen = dict[int, list[float]]
"""Log speeds of each trial, of its search run first."""


@dataclass(frozen=True)
class ValidationRun:
    """A complete run of a final comparison."""

    trial: int
    block: int
    worker: str
    tokens_per_s_per_gpu: float
    hosts: frozenset[str] = frozenset()
    """Of the worker, on which it ran; a worker over several may be given others."""


@dataclass(frozen=True)
class NextRun:
    """The run to make now."""

    trial: int
    block: int
    arms: tuple[int, ...]
    """Who takes part in the block."""


@dataclass(frozen=True)
class RankingState:
    """How far a final comparison is."""

    baseline: int
    """Where several may be it, the fastest by the search until their validation runs are there."""
    challenger: int | None
    """Who is paired with the baseline; None while candidates are screened, and where none came near the baseline."""
    log_ratios: tuple[float, ...]
    """log(challenger / baseline) of each pair."""
    next: NextRun | None
    """None: the verdict stands."""


def most_runs(candidates: int, most_pairs: int, defaults: int = 0) -> int:
    """Runs of a final comparison that uses all its pairs, loses no block, and has candidates and defaults that are all alike."""
    among_defaults = DEFAULT_BLOCKS * defaults if defaults > 1 else 0
    if candidates == 0:
        return among_defaults
    runs, alive = 2 * most_pairs + among_defaults, min(MOST_CANDIDATES, candidates)
    for blocks, left in ROUNDS:
        runs += blocks * alive if alive > left else 0
        alive = min(alive, left)
    return runs


def ranking_state(
    field: Finalists,
    searched: Mapping[int, float],
    runs: Sequence[ValidationRun],
    most_pairs: int,
    salt: str,
    decide: Decide = paired_test.decide,
) -> RankingState:
    """Replay a final comparison from its complete runs. `salt` (the study's id) seeds the order within blocks.

    `searched` has the tokens_per_s_per_gpu of its members' search runs. `decide` says when the pairs are enough.
    """
    assert field.baseline is not None and field.has_rivals
    blocks = _Blocks(field, runs, salt)
    seen: Seen = {trial: [math.log(searched[trial])] for trial in field.members}
    baseline = _fastest_default(field, blocks, seen)
    if isinstance(baseline, NextRun):
        return RankingState(field.baseline, None, (), baseline)
    challenger = _screened(field, baseline, blocks, seen)
    if isinstance(challenger, NextRun):
        return RankingState(baseline, None, (), challenger)
    if challenger is None:
        return RankingState(baseline, None, (), None)
    return _paired(baseline, challenger, blocks, most_pairs, decide)


def _paired(baseline: int, challenger: int, blocks: "_Blocks", most_pairs: int, decide: Decide) -> RankingState:
    ratios: list[float] = []
    last = blocks.block + most_pairs
    while blocks.block < last and decide(ratios, most_pairs) == "open":
        pair = blocks.take((baseline, challenger))
        if isinstance(pair, NextRun):
            # A block left out may have been the last one allowed.
            return RankingState(baseline, challenger, tuple(ratios), pair if pair.block < last else None)
        ratios.append(pair[challenger] - pair[baseline])
    return RankingState(baseline, challenger, tuple(ratios), None)


def _fastest_default(field: Finalists, blocks: "_Blocks", seen: Seen) -> int | NextRun:
    """Who everything is held against; the run that is missing to know it."""
    assert field.baseline is not None
    alive = field.defaults or (field.baseline,)
    for _ in range(DEFAULT_BLOCKS):
        if len(alive) > 1:
            lacking = blocks.add(alive, seen)
            if lacking is not None:
                return lacking
            alive = _fastest(alive, seen, len(alive))
    return max(alive, key=lambda trial: _undisturbed(seen[trial]))


def _screened(field: Finalists, baseline: int, blocks: "_Blocks", seen: Seen) -> int | NextRun | None:
    """Who is paired with the baseline; None where nobody came near it."""
    least = _undisturbed(seen[baseline]) + math.log(NEAR)
    others = (trial for trial in field.members if trial != baseline)
    alive = tuple(trial for trial in others if _undisturbed(seen[trial]) >= least)
    if not alive:
        return None
    for count, left in ROUNDS:
        if len(alive) <= left:
            continue
        for _ in range(count):
            lacking = blocks.add(alive, seen)
            if lacking is not None:
                return lacking
        alive = _fastest(alive, seen, left)
    return alive[0]


def _fastest(alive: Sequence[int], seen: Seen, keep: int) -> tuple[int, ...]:
    """Those whose faster runs are the fastest, in the order of the search."""
    speeds = {trial: _undisturbed(seen[trial]) for trial in alive}
    ranked = sorted(alive, key=lambda trial: -speeds[trial])[:keep]
    least = speeds[ranked[0]] + math.log(NEAR)
    return tuple(trial for trial in alive if trial in ranked and speeds[trial] >= least)


def _undisturbed(log_speeds: Sequence[float]) -> float:
    """Mean of the faster half."""
    fastest = sorted(log_speeds, reverse=True)
    return fmean(fastest[: (len(fastest) + 1) // 2])


class _Blocks:
    """The blocks of a final comparison, one after the other."""

    def __init__(self, field: Finalists, runs: Sequence[ValidationRun], salt: str) -> None:
        self.block = 0
        self._arms = field.members
        self._salt = salt
        self._runs: dict[int, list[ValidationRun]] = {}
        for run in runs:
            self._runs.setdefault(run.block, []).append(run)

    def add(self, arms: Sequence[int], seen: Seen) -> NextRun | None:
        """Note the next whole block among what was seen, or say which run it lacks."""
        found = self.take(arms)
        if isinstance(found, NextRun):
            return found
        for trial in arms:
            seen[trial].append(found[trial])
        return None

    def take(self, arms: Sequence[int]) -> dict[int, float] | NextRun:
        """Log speeds of the next whole block by trial, or the run that it lacks."""
        while len({(run.worker, run.hosts) for run in self._runs.get(self.block, ())}) > 1:
            self.block += 1
        speeds = {run.trial: math.log(run.tokens_per_s_per_gpu) for run in self._runs.get(self.block, ())}
        missing = [trial for trial in self._order() if trial in arms and trial not in speeds]
        if missing:
            return NextRun(missing[0], self.block, tuple(arms))
        self.block += 1
        return speeds

    def _order(self) -> list[int]:
        """Drawn anew for each block: what makes the sign of a pair a fair coin when the two are alike."""
        return random.Random(f"{self._salt}:{self.block}").sample(self._arms, len(self._arms))
