"""Estimate the remaining time of a study from the runs that it has finished."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from shardtune.api_schemas.studies.budget import FEWEST_PAIRS
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyPhase
from shardtune.api_schemas.trials.trial import (
    OPTIONAL_PURPOSES,
    SEED_ORIGINS,
    AttemptEnd,
    Run,
    RunPurpose,
    Trial,
    TrialState,
)
from shardtune.service.wording import study_words
from shardtune.service.wording.progress import activity_words, compared_pairs
from shardtune.service.wording.progress.compared_pairs import NO_PAIRS, PairCounts
from shardtune.tuner.search.seeds import MAX_SEEDS
from shardtune.tuner.verdict import final_comparison, quiet_test
from shardtune.tuner.verdict.recipes import comparison

_SEEDS_TAKE = 0.75
"""Expected duration of a later run, divided by the duration of the shortest seed trial. It is below 1, because seed
trials have micro batch 1 and only fast trials run again."""
_ENOUGH = 4
"""Minimum number of validation runs whose measured times are used to estimate the remaining time."""
_NEARLY_A_MINUTE_S = 45
"""Seconds from which the lower end of a time left is given in minutes if its upper end is."""
_SPARED_RUNS = 2 * (FEWEST_PAIRS - quiet_test.FEWEST_PAIRS)
"""Number of validation runs that a quiet machine may spare, as fewer pairs decide there."""


@dataclass(frozen=True)
class RunCounts:
    """Counts and durations of a study's runs so far. A run's seconds are the time for which it occupied its worker."""

    finished: int
    """Number of the study's trials that have ended, successfully or not."""
    shortest_search_s: float | None
    """Seconds of the shortest complete search run; None before the first one is complete."""
    validation_runs: int
    """Number of complete validation runs of the current final comparison, with those of pairs that were left out."""
    mean_validation_s: float | None
    """Mean seconds of the current final comparison's validation runs, disturbed attempts included; None before the
    first one is complete.
    """
    recipe_runs: int = 0
    """Number of complete runs of the current final comparison that compare recipes (precisions, optimizers, float8)
    rather than candidates."""
    sustained_runs: int = 0
    """Number of sustained runs (long runs after the verdict) that are over: complete ones, and before the study's first
    answer also failed ones, which are not repeated."""
    mean_chosen_s: float | None = None
    """Mean seconds of the complete search runs of trials that are no seeds, without their repeated attempts; None
    before the first one is complete."""
    repeats_per_run: float = 0.0
    """Mean number of attempts of a complete search run that were disturbed."""
    has_later_run: bool = False
    """Whether a run that follows the final comparison, such as the resume check, is open or has ended: no pair is left
    then."""
    is_rehearsing: bool = False
    """Whether a rehearsal of the projection is open: no other run of the study is left then."""
    pairs: PairCounts = NO_PAIRS
    """Numbers of complete pairs of the current final comparison, counted and left out."""

    @property
    def counting_runs(self) -> int:
        """Number of complete validation runs without those of pairs that were left out, as others run in their place."""
        return max(0, self.validation_runs - 2 * self.pairs.left_out)


def count_runs(study: Study, trials: Sequence[Trial]) -> RunCounts:
    """Count the runs of a study's trials, and their durations in seconds."""
    search = [(trial, run) for trial, run in activity_words.runs_of(trials, RunPurpose.SEARCH, TrialState.COMPLETE)]
    validation = activity_words.validation_runs(study, trials)
    sustained = [run for trial in trials for run in trial.runs if run.purpose == RunPurpose.SUSTAINED]
    world = study.cluster.world_size
    timed = [
        (trial, run, run.attempts[-1].gpu_seconds / world)
        for trial, run in search
        if run.attempts and run.attempts[-1].gpu_seconds
    ]
    search_seconds = [seconds for _, _, seconds in timed]
    chosen_seconds = [seconds for trial, _, seconds in timed if trial.origin not in SEED_ORIGINS]
    disturbed_attempts = [sum(attempt.end is AttemptEnd.DISTURBED for attempt in run.attempts) for _, run, _ in timed]
    # Disturbed attempts count: a machine that disturbed runs so far will disturb the next ones, too.
    run_seconds = [sum(attempt.gpu_seconds or 0 for attempt in run.attempts) / world for _, run in validation]
    fresh = [seconds for seconds in run_seconds if seconds]
    open_runs = [run for trial in trials for run in trial.runs if run.state.is_open]
    return RunCounts(
        finished=sum(study_words.is_done(trial) for trial in trials),
        shortest_search_s=min(search_seconds, default=None),
        validation_runs=len(validation),
        recipe_runs=len(activity_words.runs_of_comparison(study, trials, RunPurpose.RECIPE)),
        sustained_runs=sum(_is_over(study, run) for run in sustained),
        mean_validation_s=sum(fresh) / len(fresh) if fresh else None,
        mean_chosen_s=fmean(chosen_seconds) if chosen_seconds else None,
        repeats_per_run=fmean(disturbed_attempts) if disturbed_attempts else 0.0,
        has_later_run=any(_follows_comparison(study, run) for trial in trials for run in trial.runs),
        is_rehearsing=any(run.purpose == RunPurpose.REHEARSAL for run in open_runs),
        pairs=compared_pairs.count_pairs(
            compared_pairs.compared_runs(study, trials), is_over=compared_pairs.is_comparison_over(study, trials)
        ),
    )


def follows_comparison(purpose: RunPurpose, *, is_whole_step: bool) -> bool:
    """Whether a run takes place only once the pairs of a final comparison have decided. `is_whole_step`: whether it times
    whole steps after the verdict."""
    return is_whole_step or purpose in (RunPurpose.RESUME_CHECK, *OPTIONAL_PURPOSES)


def _follows_comparison(study: Study, run: Run) -> bool:
    """Whether a run follows the final comparison, so that no pair is left. Ended runs show that only before the study's
    first answer: afterwards they may be from before an extension."""
    if run.state.is_open:
        return follows_comparison(run.purpose, is_whole_step=run.is_whole_step)
    # A failed resume check lets the comparison begin anew.
    passed = run.purpose == RunPurpose.RESUME_CHECK and run.state is TrialState.COMPLETE
    return study.result is None and (passed or _is_over(study, run))


def _is_over(study: Study, run: Run) -> bool:
    """Whether a run is a sustained run that the study does not make again."""
    is_failed = study.result is None and run.state in (TrialState.FAILED, TrialState.INFEASIBLE)
    return run.purpose == RunPurpose.SUSTAINED and (run.state is TrialState.COMPLETE or is_failed)


def words(study: Study, trials: Sequence[Trial], elapsed_s: float) -> str:
    """Describe the remaining time of a study: `about 3 to 5 min left`. Empty where nothing is known. Beyond the
    expected validation runs, the time holds only if all pairs are needed, and the words say so."""
    runs = count_runs(study, trials)
    remaining = estimate(study, runs, elapsed_s)
    if not remaining:
        return ""
    is_comparing = study.phase is StudyPhase.FINAL_COMPARISON and not (runs.recipe_runs or runs.has_later_run)
    is_bound = is_comparing and runs.counting_runs >= validation_runs_expected(study)
    return f"{remaining} left{f' if all {study.spec.budget.max_pairs} pairs are needed' if is_bound else ''}"


def estimate(study: Study, runs: RunCounts, elapsed_s: float) -> str:
    """Estimate the remaining time of a study: `about 3 to 5 min`. Empty before the first search run is complete,
    during a rehearsal, which is not timed, and while pairs of the final comparison run again because their two runs had
    unequal load or ran on different hosts.

    The lower number holds if the machine is so quiet that fewer pairs decide. It is left out where this is not
    possible."""
    if runs.shortest_search_s is None or study.phase is StudyPhase.DONE or runs.is_rehearsing:
        return ""
    budget, per_run = study.spec.budget, _later_run_s(study, runs.shortest_search_s, runs)
    search_s = 0.0
    if study.phase is StudyPhase.SEARCH:
        search_s = max(0, budget.most_trials - runs.finished) * per_run
    per_fresh = (
        runs.mean_validation_s if runs.mean_validation_s is not None and runs.validation_runs >= _ENOUGH else per_run
    )
    expected, most = validation_runs_expected(study), activity_words.most_validation_runs(study)
    # The resume check, recipes and others run once the verdict is known: then no validation run is left.
    is_verdict_known = runs.recipe_runs > 0 or runs.has_later_run
    is_over = runs.counting_runs >= expected and not is_verdict_known
    # Blocks of more than two runs that were on different machines may exceed the maximum.
    left = 0 if is_verdict_known else max(0, (most if is_over else expected) - runs.counting_runs)
    repeats = runs.pairs.expected_repeats(left, budget.max_pairs)
    left += repeats
    # Without `max_trials` the search may stop earlier, and beyond the expected runs only the maximum is certain.
    is_bound = (
        is_over
        or (study.phase is StudyPhase.SEARCH and budget.max_trials is None)
        or 0 < recipe_runs_expected(study) <= runs.recipe_runs
    )
    answer_s = search_s + left * per_fresh + _sustained_seconds(study, runs, per_run)
    seconds = min(answer_s, _most_seconds(study, elapsed_s))
    seconds += _recipe_seconds(study, runs.recipe_runs, per_fresh, is_bound=is_bound)
    if is_bound:
        return f"at most {'about ' if repeats else ''}{study_words.duration(seconds)}" if seconds else ""
    # A disturbed run forbids the test for quiet machines, and studies of the service do not use it.
    may_be_quiet = runs.repeats_per_run == 0 and runs.pairs.left_out == 0 and study.system_study is None
    return _about(seconds - (min(left, _SPARED_RUNS) * per_fresh if may_be_quiet else 0.0), seconds)


def _most_seconds(study: Study, elapsed_s: float) -> float:
    """Return the seconds that the limits of a study's budget leave for its answer; infinite without such a limit."""
    budget, rest = study.spec.budget, math.inf
    if budget.max_wall_seconds is not None:
        rest = min(rest, budget.max_wall_seconds - elapsed_s)
    if budget.max_gpu_seconds is not None:
        rest = min(rest, (budget.max_gpu_seconds - study.gpu_seconds) / study.cluster.world_size)
    return max(0.0, rest)


def _sustained_seconds(study: Study, runs: RunCounts, per_run: float) -> float:
    """Return the expected seconds of the sustained run, the long run after the verdict; 0 if the study makes none, or has
    made it."""
    sustained_s = study.spec.budget.sustained_seconds(study.cluster.device)
    # A study of the service makes none, nor does one of the user's own script.
    makes_none = study.system_study is not None or study.spec.model.script is not None
    # It comes before the recipes.
    is_over = runs.sustained_runs > 0 or runs.recipe_runs > 0
    return 0.0 if makes_none or is_over or not sustained_s else sustained_s + per_run


def _later_run_s(study: Study, shortest_search_s: float, runs: RunCounts) -> float:
    """Return the expected seconds of a later run, its repeated attempts included."""
    once_s = runs.mean_chosen_s if runs.mean_chosen_s is not None else _SEEDS_TAKE * shortest_search_s
    # The first runs of a study may be repeated more often than that, later ones may not.
    return once_s * (1 + min(runs.repeats_per_run, study.spec.budget.repeat_disturbed))


def _about(least_s: float, most_s: float) -> str:
    """Format an expected duration between two numbers of seconds; empty if the larger one is 0."""
    if not most_s:
        return ""
    least, most = study_words.duration(least_s), study_words.duration(most_s)
    # `1 to 2 min` is easier to read than `73 s to 2 min`.
    if most.endswith(" min") and least.endswith(" s") and least_s >= _NEARLY_A_MINUTE_S:
        least = f"{round(least_s / 60)} min"
    # Nothing may be left as soon as the fewest pairs have run.
    if round(least_s) <= 0 or least == most:
        return f"about {most}"
    number, _, unit = least.partition(" ")
    return f"about {number if most.split()[1:] == [unit] else least} to {most}"


def _recipe_seconds(study: Study, done: int, per_run: float, *, is_bound: bool) -> float:
    """Return the expected seconds of the remaining runs that compare recipes (precisions, optimizers, float8). They
    are counted by their maximum number if `is_bound`, else by their minimum number."""
    blocks = comparison.MOST_BLOCKS if is_bound else quiet_test.FEWEST_PAIRS
    arms = _recipe_arms(study)
    # The first run of each recipe begins with the steps whose losses compare; first runs come before all others.
    loss_steps = max(0, arms - done) * study.spec.consider_steps
    return max(0, arms * blocks - done) * per_run + loss_steps * _step_s(study)


def _step_s(study: Study) -> float:
    """Return the seconds that a training step of the fastest configuration so far takes; 0 if none is measured yet."""
    if study.best_so_far is None:
        return 0.0
    tokens_per_s = study.best_so_far.tokens_per_s_per_gpu * study.cluster.world_size
    return study.spec.workload.tokens_per_step / tokens_per_s


def _recipe_arms(study: Study) -> int:
    """Return the number of recipes (precisions, optimizers, float8) that a study compares, its stated recipe
    included; 0 if it compares none."""
    # A study of the service confirms an answer, and repeats no comparison of recipes.
    if not study.spec.consider or study.system_study is not None:
        return 0
    return len(study.spec.consider) + 1


def recipe_runs_expected(study: Study) -> int:
    """Return the minimum number of runs that compare the recipes (precisions, optimizers, float8) which a study
    considers with the one that it states; 0 if it considers none."""
    return _recipe_arms(study) * quiet_test.FEWEST_PAIRS


def validation_runs_expected(study: Study) -> int:
    """Return the number of validation runs that a final comparison is likely to take."""
    if study.final_comparison_runs is not None:
        return max(0, study.final_comparison_runs - 2 * (study.spec.budget.max_pairs - FEWEST_PAIRS))
    # A clear winner is decided after the fewest pairs, and most candidates that do not win drop out by then.
    defaults = MAX_SEEDS // 2 if study.spec.baseline is None else 0
    return final_comparison.likely_runs(study.spec.budget.most_trials, FEWEST_PAIRS, defaults)
