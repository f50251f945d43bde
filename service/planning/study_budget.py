"""Keep a study within its limits of GPU-seconds and time (`budget.max_gpu_seconds`, `budget.max_wall_seconds`).

- The search ends once the next trial would leave too little for the final comparison and the checks of the answer.
- The final comparison starts with no more candidates than its rest of the budget can compare, and starts no run whose
  comparison block (runs directly after each other) would exceed a limit.
- A run that executes is never ended because of a limit.

A study without these limits is planned as if this module did not exist.
"""

import math
from dataclasses import replace

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.studies.budget import FEWEST_PAIRS, Budget
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.reasons import StudyReason
from shardtune.api_schemas.studies.study_state import StudyPhase
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.tuner.verdict import budget_left, ranking
from shardtune.tuner.verdict.budget_left import Shortage, StudySpent
from shardtune.tuner.verdict.comparison_blocks import NextRun
from shardtune.tuner.verdict.final_comparison import RankingState

_MORE_PAIRS = "added pairs raise this limit by what they should take"


def why_search_ends(snapshot: StudySnapshot, field: Finalists, spent: StudySpent) -> StudyReason | None:
    """Reason to end a search because the rest of its budget is needed for the final comparison; None if another trial
    fits as well, and while there is nothing to compare.

    `field`: finalists if the search ended now.
    """
    usual_s = budget_left.usual_run_s(snapshot.history)
    if not budget_left.is_limited(snapshot.spec.budget) or usual_s is None or not field.needs_runs:
        return None
    # The trials under way end before the comparison begins, as the next one does, and all at about the same time.
    trials = 1 + sum(obs.state.is_open for obs in snapshot.history)
    ranks = snapshot.cluster.world_size
    after = StudySpent(spent.gpu_seconds + trials * usual_s * ranks, spent.elapsed_s + usual_s)
    short = _shortage_of_comparison(snapshot, field, after)
    if short is None:
        return None
    runs = counted(budget_left.fewest_runs(field, ranking.search_speeds(snapshot.history)), "validation run")
    return StudyReason(
        code=short.code,
        text=f"the rest of {short.limit} is kept for the final comparison",
        details=f"after the next trial {short.left} are left, and {runs} and the checks of the answer take about "
        f"{short.needed}",
    )


def fitting_finalists(snapshot: StudySnapshot, field: Finalists, spent: StudySpent) -> Finalists:
    """Leave out the slowest candidates of a final comparison as far as the rest of the budget cannot choose among so
    many and then run the fewest pairs. The fastest candidate stays."""
    kept, short = field, _shortage_of_comparison(snapshot, field, spent)
    while len(kept.candidates) > 1 and _shortage_of_comparison(snapshot, kept, spent) is not None:
        kept = replace(kept, candidates=kept.candidates[:-1])
    if short is None or len(kept.members) == len(field.members):
        return field
    # A documented default runs again with the other defaults, although it is no candidate any more.
    left_out = counted(len(field.members) - len(kept.members), "slowest candidate")
    note = f"{short.limit} leaves {short.left} for the final comparison: its {left_out} did not run again"
    return replace(kept, notes=(*kept.notes, note))


def _shortage_of_comparison(snapshot: StudySnapshot, field: Finalists, spent: StudySpent) -> Shortage | None:
    budget, usual_s = snapshot.spec.budget, budget_left.usual_run_s(snapshot.history)
    if not budget_left.is_limited(budget) or usual_s is None:
        return None
    runs = budget_left.fewest_runs(field, ranking.search_speeds(snapshot.history))
    needed_s = runs * usual_s + budget_left.checks_s(snapshot.history, snapshot.spec)
    return budget_left.shortage(budget, spent, needed_s, snapshot.cluster.world_size)


def why_no_run(snapshot: StudySnapshot, next_run: NextRun, spent: StudySpent) -> StudyReason | None:
    """Reason to end a final comparison before its next run, because the runs that its comparison block still needs would
    exceed a limit; None if they fit, with the checks of the answer."""
    budget, ranks = snapshot.spec.budget, snapshot.cluster.world_size
    if not budget_left.is_limited(budget):
        return None
    complete = {run.trial for run in snapshot.validation_runs if run.comparison_block == next_run.comparison_block}
    missing = [trial for trial in next_run.arms if trial not in complete]
    checks_s = budget_left.checks_s(snapshot.history, snapshot.spec)
    needed_s = budget_left.block_s(snapshot.history, missing)
    short = budget_left.shortage(budget, spent.plus(checks_s, ranks), needed_s, ranks)
    if short is None:
        return None
    if checks_s:
        short = short._replace(left=f"{short.left} beside the checks of the answer")
    block = "pair" if len(next_run.arms) == 2 else "block of runs"
    rest = short.describe(f"the rest of a {block}" if complete else f"a {block}")
    return StudyReason(code=short.code, text=f"the final comparison ended early: {rest}; {_MORE_PAIRS}")


def why_no_check(snapshot: StudySnapshot, spent: StudySpent) -> str | None:
    """Reason to leave out a check of the answer, because a limit of the budget is reached; None if none is."""
    # Pairs kept the room of the checks. A run that took longer than expected is no reason to leave a check out.
    short = budget_left.shortage(snapshot.spec.budget, spent, 0.0, snapshot.cluster.world_size)
    return None if short is None else f"{short.limit} is used up"


def with_room_for_pairs(
    snapshot: StudySnapshot,
    budget: Budget,
    field: Finalists,
    state: RankingState,
    pairs: int,
    spent: StudySpent,
    wait_s: float = 0.0,
) -> Budget:
    """Raise the limits of a budget as far as added pairs need it: to what is spent, and what the pairs and the checks of
    the answer should take, with one pair to spare. Pairs that were added before and have not run yet keep their room.

    `state`: progress of the final comparison to which the pairs are added. `wait_s`: seconds that their runs may wait for a
    quiet machine, beyond those that the study allowed before.
    """
    choosing_s, pair_s = _seconds_to_come(snapshot, field, state)
    beside_s = choosing_s + budget_left.checks_s(snapshot.history, snapshot.spec)

    def spent_after(count: int) -> StudySpent:
        # Runs differ in length, and what the last pair lacked would be a reason to ask again.
        return spent.plus(beside_s + (count + 1) * pair_s, snapshot.cluster.world_size)

    ran = len(state.pairs) + len(state.uneven_pairs)
    least = spent_after(max(pairs, field.fewest_pairs - ran))
    # Pairs that the limit already allows run besides those that are added.
    most = spent_after(max(0, budget.max_pairs - ran)) if snapshot.phase is StudyPhase.FINAL_COMPARISON else least
    more = StudySpent(0.0, 0.0).plus(pairs * pair_s, snapshot.cluster.world_size)
    limits = dict[str, float]()
    if budget.max_gpu_seconds is not None:
        limits["max_gpu_seconds"] = _raised(
            budget.max_gpu_seconds, more.gpu_seconds, (least.gpu_seconds, most.gpu_seconds)
        )
    if budget.max_wall_seconds is not None:
        needed = (least.elapsed_s + wait_s, most.elapsed_s + wait_s)
        limits["max_wall_seconds"] = _raised(budget.max_wall_seconds, more.elapsed_s + wait_s, needed)
    return budget.model_copy(update=limits)


def _seconds_to_come(snapshot: StudySnapshot, field: Finalists, state: RankingState) -> tuple[float, float]:
    """Seconds of the runs that still choose the challenger of a final comparison, and of one pair."""
    history, usual_s = snapshot.history, budget_left.usual_run_s(snapshot.history) or 0.0
    if state.challenger is not None:
        return 0.0, budget_left.block_s(history, (state.baseline, state.challenger))
    runs = budget_left.fewest_runs(field, ranking.search_speeds(history))
    return max(0, runs - 2 * FEWEST_PAIRS - len(snapshot.validation_runs)) * usual_s, 2 * usual_s


def _raised(limit: float, more: float, needed: tuple[float, float]) -> float:
    """Raise a limit by `more`, to at least and at most these amounts. It is never lowered."""
    least, most = needed
    return max(limit, float(math.ceil(least)), float(math.ceil(min(limit + more, most))))
