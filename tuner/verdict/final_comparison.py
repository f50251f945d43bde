"""Final comparison: which trials run again, in which order, and what their validation runs decide.

- Without a user's baseline, the documented defaults run against each other, and the fastest becomes the baseline.
- The fastest trials of the search run in comparison blocks, each with one validation run of the baseline and of every
  remaining candidate, and the slower ones are eliminated. The search counts as one more block.
- The last candidate runs in pairs with the baseline until `tuner.verdict.paired_test` decides. These pairs alone can
  confirm a gain: they had no part in any choice, so one comparison needs protection, however many candidates there
  were. Runs beside the baseline's that show a candidate far behind end the comparison earlier.
- On a quiet machine `tuner.verdict.quiet_test` may decide after three to six pairs.
- A pair whose runs had unequal load is left out, and another one takes its place (`tuner.verdict.too_busy`). So is one
  whose runs were on different workers or hosts, until these are half of the limit on pairs.

Nothing is dropped before it has run beside the baseline. Everything is derived from the stored runs. Blocks whose runs
were on different workers, or on other hosts of one worker, are left out.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.study_result import Speedup, Verdict
from shardtune.tuner.verdict import paired_test, quiet_test, too_busy, undecided
from shardtune.tuner.verdict.comparison_blocks import NEAR_FRACTION, ComparisonBlocks, NextRun, Pair, ValidationRun
from shardtune.tuner.verdict.paired_test import Decision

MAX_CANDIDATES = 20
# The first round has the search's run besides its own, so a single disturbed run eliminates no candidate.
ROUNDS = ((1, 8), (1, 4), (2, 1))
"""Screening rounds of a final comparison, as (number of comparison blocks, number of candidates left after them). A
round that would eliminate no candidate is skipped."""

_NEAR = 0.5
"""Fraction of a search's trials that a cost estimate expects to be fast enough for the final comparison."""
# One search run each would leave it to chance which default everything is compared with.
DEFAULT_BLOCKS = 2
"""Maximum number of comparison blocks that run the documented defaults against each other; after each block, defaults
far behind the fastest are eliminated."""

Decide = Callable[[Sequence[float], int], Decision]


@dataclass(frozen=True)
class RankingState:
    """Progress of a final comparison: the baseline, the challenger, the pairs so far and the next run."""

    baseline: int
    """Number of the baseline trial: the fastest default by search runs, until validation runs of several defaults
    decide."""
    challenger: int | None
    """Number of the trial that is compared with the baseline; None while screening still chooses among several
    candidates."""
    pairs: tuple[Pair, ...]
    """Pairs of the challenger and the baseline that count (neither run saw much more load than the other), in the order
    of the runs."""
    next: NextRun | None
    """Next validation run that the final comparison needs; None once the verdict is final."""
    is_far_behind: bool = False
    """Whether the challenger's runs beside the baseline's showed that it is far slower, so that no further pair was
    run."""
    lost_blocks: int = 0
    """Number of comparison blocks left out because their runs were on different workers or hosts."""
    uneven_pairs: tuple[Pair, ...] = ()
    """Pairs that were left out because other programs loaded their two runs unequally."""
    is_settled_early: bool = False
    """Whether the test for quiet machines (`tuner.verdict.quiet_test`) ended the comparison with fewer pairs than the
    sign test needs."""

    @property
    def speedup(self) -> Speedup | None:
        """Speed-up with the interval of the test that ended the comparison. None with too few pairs, and where the
        comparison ended because the challenger was far slower."""
        # Pairs that showed the challenger far behind chose nothing and may be few: they show no interval.
        if self.is_far_behind:
            return None
        return quiet_test.speedup(self.pairs) if self.is_settled_early else paired_test.speedup(self.log_ratios)

    @property
    def log_ratios(self) -> tuple[float, ...]:
        """Natural logarithm of the challenger's speed over the baseline's, one number for each pair of runs."""
        return tuple(pair.log_ratio for pair in self.pairs)


def finalists_among(
    search_speeds: Mapping[int, float], disturbed_searches: Collection[int], baseline: int
) -> tuple[int, ...]:
    """Trials that the final comparison runs again beside the baseline, fastest first: the fastest trial, and all whose
    speed is near both the fastest trial's and the baseline's.

    `search_speeds` contains the tokens_per_s_per_gpu of the search runs, by trial number. `disturbed_searches` names
    the trials whose search run was disturbed.
    """
    others = sorted((trial for trial in search_speeds if trial != baseline), key=lambda trial: -search_speeds[trial])

    def is_near(trial: int, reference: int) -> bool:
        # A disturbed run may be slow for its disturbance alone, so it is held to disturbed runs only.
        is_unlike = trial in disturbed_searches and reference not in disturbed_searches
        return is_unlike or search_speeds[trial] >= NEAR_FRACTION * search_speeds[reference]

    references = [baseline, *others[:1], *[trial for trial in others if trial in disturbed_searches][:1]]
    rivals = (trial for trial in others[1:] if all(is_near(trial, reference) for reference in references))
    return (*others[:1], *rivals)[:MAX_CANDIDATES]


def max_runs(candidates: int, most_pairs: int, defaults: int = 0) -> int:
    """Maximum number of validation runs in a final comparison. It is reached if every pair is used, no comparison block
    is lost, and all candidates and defaults are equally fast.

    `candidates`: number of trials that may be compared with the baseline.
    """
    among_defaults = DEFAULT_BLOCKS * defaults if defaults > 1 else 0
    if candidates == 0:
        return among_defaults
    runs, alive = 2 * most_pairs + among_defaults, min(MAX_CANDIDATES + defaults, candidates)
    for blocks, kept_count in ROUNDS:
        runs += blocks * (alive + 1) if alive > kept_count else 0
        alive = min(alive, kept_count)
    return runs


def likely_runs(trials: int, pairs: int, defaults: int = 0) -> int:
    """Estimate the number of validation runs of a final comparison that ends after `pairs` pairs, for a search that has
    not ended yet.

    `trials`: number of trials that the search will have run.
    """
    return max_runs(math.ceil(_NEAR * (trials - 1)), pairs, defaults)


def ranking_state(
    field: Finalists,
    search_speeds: Mapping[int, float],
    runs: Sequence[ValidationRun],
    most_pairs: int,
    salt: str,
    decide: Decide = paired_test.decide,
    disturbed_searches: Collection[int] = (),
    may_end_early: bool = True,
) -> RankingState:
    """Compute the progress of a final comparison by replaying its complete runs.

    `search_speeds` contains the tokens_per_s_per_gpu of the search runs of the trials in the comparison, and
    `disturbed_searches` those trials whose search run was disturbed. `decide` decides when the pairs are enough.
    `may_end_early`: whether fewer pairs may be enough on a quiet machine. `salt` (the study's id) seeds the order within
    comparison blocks.
    """
    assert field.baseline is not None and field.needs_runs
    blocks = ComparisonBlocks(field, search_speeds, disturbed_searches, runs, salt)
    baseline = _find_fastest_default(field, blocks)
    if isinstance(baseline, NextRun):
        return RankingState(field.baseline, None, (), baseline, lost_blocks=blocks.lost_blocks)
    challenger = _screen(field, baseline, blocks)
    if isinstance(challenger, NextRun):
        return RankingState(baseline, None, (), challenger, lost_blocks=blocks.lost_blocks)
    is_over = partial(_is_over, decide, most_pairs=most_pairs, fewest_pairs=field.fewest_pairs)
    return _run_pairs(baseline, challenger, blocks, most_pairs, is_over, may_end_early)


def without_further_runs(state: RankingState, field: Finalists) -> RankingState:
    """Final state of a final comparison that may run no further run: its pairs so far decide. Before the challenger is
    chosen, the fastest candidate of the search takes its place, without a pair."""
    challenger = state.challenger
    if challenger is None:
        challenger = next(trial for trial in (*field.candidates, *field.members) if trial != state.baseline)
    return replace(state, challenger=challenger, next=None)


def _is_over(decide: Decide, pairs: Sequence[Pair], uneven: int, *, most_pairs: int, fewest_pairs: int) -> bool:
    """Whether the pairs decide, by a test, or too many were uneven. `uneven`: number of pairs that were left out. Where
    pairs were added to a comparison without a verdict, `fewest_pairs` run in all, unless fewer have one."""
    is_added = len(pairs) + uneven < fewest_pairs
    # Uneven pairs that ended the comparison before, perhaps more than once, are no reason to run none of the added ones.
    if not is_added and not too_busy.may_go_on(uneven, most_pairs):
        return True
    ratios = [pair.log_ratio for pair in pairs]
    if decide(ratios, most_pairs) == "open":
        return False
    # Disturbed pairs may end the test, but confirm nothing: an added pair may be the undisturbed one.
    has_verdict = undecided.verdict(pairs, paired_test.speedup(ratios)) is not Verdict.UNDECIDED
    return has_verdict or not is_added


def _may_pair(pairs: int, lost: int, most_pairs: int) -> bool:
    """Whether the limit on pairs allows another one. Pairs that were left out use up none of it. `lost`: number of
    comparison blocks left out because their runs were on different workers or hosts."""
    # Beyond half of the limit, lost blocks count: where each run is on another host, all blocks are lost.
    return pairs + max(0, lost - most_pairs // 2) < most_pairs


def _run_pairs(
    baseline: int,
    challenger: int,
    blocks: ComparisonBlocks,
    most_pairs: int,
    is_over: Callable[[Sequence[Pair], int], bool],
    may_end_early: bool,
) -> RankingState:
    if blocks.is_far_behind(challenger, baseline):
        # Nobody was chosen by these runs: they only show that no pair could be won.
        even, uneven = blocks.pairs_by_evenness(challenger, baseline)
        return RankingState(baseline, challenger, even, None, True, blocks.lost_blocks, uneven)
    pairs, uneven_pairs = list[Pair](), list[Pair]()
    lost_before = blocks.lost_blocks
    missing_run: NextRun | None = None
    is_far_behind = is_settled_early = False

    def may_pair() -> bool:
        return _may_pair(len(pairs), blocks.lost_blocks - lost_before, most_pairs)

    while may_pair() and not is_far_behind and not is_over(pairs, len(uneven_pairs)):
        is_settled_early = may_end_early and quiet_test.decide(pairs, len(uneven_pairs)) != "open"
        if is_settled_early:
            break
        block = blocks.take((baseline, challenger))
        if isinstance(block, NextRun):
            # The block that was left out may have been the last one that is allowed.
            missing_run = block if may_pair() else None
            break
        pair = blocks.pairs(challenger, baseline)[-1]
        (pairs if pair.is_even else uneven_pairs).append(pair)
        is_far_behind = blocks.is_far_behind(challenger, baseline)
    return RankingState(
        baseline,
        challenger,
        tuple(pairs),
        missing_run,
        is_far_behind,
        blocks.lost_blocks,
        tuple(uneven_pairs),
        is_settled_early,
    )


def _find_fastest_default(field: Finalists, blocks: ComparisonBlocks) -> int | NextRun:
    """Trial number of the documented default that is fastest in validation runs; until that is known, the next
    validation run to make."""
    assert field.baseline is not None
    alive = field.defaults or (field.baseline,)
    for _ in range(DEFAULT_BLOCKS):
        if len(alive) > 1:
            block = blocks.take(alive)
            if isinstance(block, NextRun):
                return block
            alive = _fastest(alive, blocks, len(alive))
    scores = blocks.scores(alive)
    return max(alive, key=lambda trial: scores[trial])


def _screen(field: Finalists, baseline: int, blocks: ComparisonBlocks) -> int | NextRun:
    """Choose the candidate that runs in pairs with the baseline and return its trial number, once screening has ended; until
    then return the next validation run of the screening."""
    rivals = tuple(trial for trial in field.members if trial != baseline)
    alive = _near_baseline(rivals, baseline, blocks)
    for count, kept_count in ROUNDS:
        if len(alive) <= kept_count:
            continue
        for _ in range(count):
            block = blocks.take((baseline, *alive))
            if isinstance(block, NextRun):
                return block
        alive = _near_baseline(_fastest(alive, blocks, kept_count), baseline, blocks)
    return alive[0]


def _near_baseline(alive: tuple[int, ...], baseline: int, blocks: ComparisonBlocks) -> tuple[int, ...]:
    """Numbers of the trials that are not far slower than the baseline, by runs made beside it. If all are far slower,
    only the first trial's number is returned."""
    return tuple(trial for trial in alive if not blocks.is_far_behind(trial, baseline)) or alive[:1]


def _fastest(alive: Sequence[int], blocks: ComparisonBlocks, keep: int) -> tuple[int, ...]:
    """Numbers of the at most `keep` trials with the fastest undisturbed runs, in the order of the search."""
    scores = blocks.scores(alive)
    ranked = sorted(alive, key=lambda trial: -scores[trial])[:keep]
    return tuple(trial for trial in alive if trial in ranked and not blocks.is_far_behind(trial, ranked[0]))
