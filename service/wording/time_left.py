"""How long a study will still take, from the runs it has made."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardtune.api_schemas.studies.study import FEWEST_PAIRS, Study, StudyPhase
from shardtune.api_schemas.trials.trial import RunPurpose, Trial, TrialState
from shardtune.service.wording import study_words
from shardtune.tuner.search.seeds import MOST_SEEDS
from shardtune.tuner.verdict import final_comparison

_SEEDS_TAKE = 0.75
"""What later runs take of the shortest seed's time: seeds have micro batch 1, and whoever is run again is fast."""
_ENOUGH = 4
"""Trials, or validation runs, whose own times say more."""
_NEAR = 0.5
"""Share of the trials that is near enough to the fastest to be run again."""


@dataclass(frozen=True)
class RunsMade:
    """Runs of a study so far. Seconds are those of a run, as long as it held its worker."""

    finished: int
    """Trials that have ended, however."""
    shortest_s: float | None
    """Of the complete search runs."""
    fresh: int
    """Complete runs of the present final comparison."""
    fresh_s: float | None
    """Their mean, with attempts that were disturbed."""


def made_by(study: Study, trials: Sequence[Trial]) -> RunsMade:
    """From a study's trials."""
    search = [(trial, run) for trial, run in study_words.runs_of(trials, RunPurpose.SEARCH, TrialState.COMPLETE)]
    again = study_words.validation_runs(study, trials)
    world = study.cluster.world_size
    shown = [run.attempts[-1].gpu_seconds / world for _, run in search if run.attempts and run.attempts[-1].gpu_seconds]
    # With what was repeated: a machine that disturbs runs will go on doing so.
    took = [sum(one.gpu_seconds or 0 for one in run.attempts) / world for _, run in again]
    fresh = [seconds for seconds in took if seconds]
    return RunsMade(
        finished=sum(study_words.is_done(trial) for trial in trials),
        shortest_s=min(shown, default=None),
        fresh=len(again),
        fresh_s=sum(fresh) / len(fresh) if fresh else None,
    )


def left(study: Study, made: RunsMade, elapsed_s: float) -> str:
    """In words; empty before a run has shown how long one takes."""
    if made.shortest_s is None or study.phase is StudyPhase.DONE:
        return ""
    budget = study.spec.budget
    per_run = made.shortest_s * (_SEEDS_TAKE if made.finished < _ENOUGH else 1.1)
    search_s = 0.0
    if study.phase is StudyPhase.SEARCH:
        search_s = max(0, budget.most_trials - made.finished) * per_run
        if budget.max_wall_seconds is not None:
            search_s = min(search_s, max(0.0, budget.max_wall_seconds - elapsed_s))
    per_fresh = made.fresh_s if made.fresh_s is not None and made.fresh >= _ENOUGH else per_run
    expected, most = validation_runs_expected(study), study_words.most_confirm_runs(study)
    is_over = made.fresh >= expected
    seconds = search_s + ((most if is_over else expected) - made.fresh) * per_fresh
    is_bound = is_over or (study.phase is StudyPhase.SEARCH and budget.max_trials is None)
    return f"{'at most' if is_bound else 'about'} {study_words.duration(seconds)}"


def validation_runs_expected(study: Study) -> int:
    """Of a final comparison: clear winners take the fewest pairs there can be, and most that are none are seen to be none by then."""
    if study.final_comparison_runs is not None:
        return max(0, study.final_comparison_runs - 2 * (study.spec.budget.max_pairs - FEWEST_PAIRS))
    near = math.ceil(_NEAR * (study.spec.budget.most_trials - 1))
    defaults = MOST_SEEDS // 2 if study.spec.baseline is None else 0
    return final_comparison.most_runs(near, FEWEST_PAIRS, defaults)
