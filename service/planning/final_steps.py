"""Plan the steps of a study after its search: paired runs of the finalists, whole steps, the resume check, the sustained
run, and the recipes that the study considers.
"""

from collections.abc import Mapping

from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.reasons import StudyReason
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.service.planning import study_budget
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.planning.study_steps import (
    Complete,
    NewRecipeRun,
    NewResumeRun,
    NewSustainedRun,
    NewValidationRun,
    Step,
    Wait,
)
from shardtune.tuner.verdict import budget_left, final_comparison, ranking, run_length, whole_steps
from shardtune.tuner.verdict.budget_left import StudySpent
from shardtune.tuner.verdict.comparison_blocks import NextRun
from shardtune.tuner.verdict.recipes import comparison
from shardtune.tuner.verdict.winner import resume_check, sustained_run


def next_confirmation(snapshot: StudySnapshot, finalists: Finalists, elapsed_s: float) -> Step:
    """Plan the next step of a study whose finalists (the trials compared at the end) are chosen. `elapsed_s`: seconds
    since the study could first run.
    """
    if snapshot.has_open_run and not snapshot.is_stranded:
        # A stranded run can never take place, so it does not hold up the result.
        return Wait()
    if not finalists.needs_runs:
        return _finish(snapshot, finalists, ranking.result_of_baseline(snapshot.history, finalists), elapsed_s)
    ranking_state = _ranking_state(snapshot, finalists)
    if ranking_state.next is None:
        return _finish(snapshot, finalists, result_of(snapshot, finalists, ranking_state), elapsed_s)
    reason = study_budget.why_no_run(snapshot, ranking_state.next, StudySpent(snapshot.gpu_seconds, elapsed_s))
    if reason is None:
        return validation_run(snapshot, ranking_state.next, ranking.search_speeds(snapshot.history))
    ranking_state = final_comparison.without_further_runs(ranking_state, finalists)
    result = _ended_by_budget(result_of(snapshot, finalists, ranking_state), reason)
    return _finish(snapshot, finalists, result, elapsed_s)


def _ended_by_budget(result: StudyResult, reason: StudyReason) -> StudyResult:
    """Add the limit of the budget that ended a final comparison to its result."""
    update: dict[str, object] = {"notes": (*result.notes, reason.text)}
    if result.undecided is not None:
        update["undecided"] = result.undecided.model_copy(update={"ended_by": reason.code})
    return result.model_copy(update=update)


def pairs_so_far(snapshot: StudySnapshot, finalists: Finalists) -> int:
    """Number of pairs that the present final comparison of a study has run, with those that were left out."""
    ranking_state = _ranking_state(snapshot, finalists)
    return len(ranking_state.pairs) + len(ranking_state.uneven_pairs)


def budget_for_pairs(
    snapshot: StudySnapshot, finalists: Finalists, budget: Budget, pairs: int, spent: StudySpent, wait_s: float = 0.0
) -> Budget:
    """Raise the limits of a budget as far as pairs that are added to the present final comparison need it. `wait_s`:
    seconds that their runs may wait for a quiet machine, beyond those that the study allowed before."""
    if not budget_left.is_limited(budget):
        return budget
    state = _ranking_state(snapshot, finalists)
    return study_budget.with_room_for_pairs(snapshot, budget, finalists, state, pairs, spent, wait_s)


def _ranking_state(snapshot: StudySnapshot, finalists: Finalists) -> final_comparison.RankingState:
    return final_comparison.ranking_state(
        finalists,
        ranking.search_speeds(snapshot.history),
        snapshot.validation_runs,
        snapshot.spec.budget.max_pairs,
        snapshot.study_id,
        disturbed_searches=ranking.disturbed_searches(snapshot.history),
    )


def _finish(snapshot: StudySnapshot, finalists: Finalists, result: StudyResult, elapsed_s: float) -> Step:
    confirmed = confirm_extension(snapshot, finalists, result)
    if isinstance(confirmed, NewValidationRun):
        used_up = study_budget.why_no_check(snapshot, StudySpent(snapshot.gpu_seconds, elapsed_s))
        # A decided verdict must not rest on extrapolated times alone, whatever its check takes.
        if used_up is None or result.verdict is not Verdict.UNDECIDED:
            return confirmed
        confirmed = whole_steps.checked(result, snapshot.history, finalists)
    if snapshot.answer(confirmed) is not confirmed:
        # The runs that follow are of a study's answer, and this comparison's winner will not be it.
        return Complete(confirmed)
    return _check_resume(snapshot, confirmed, elapsed_s)


def confirm_extension(
    snapshot: StudySnapshot, finalists: Finalists, result: StudyResult
) -> NewValidationRun | StudyResult:
    """Plan the next run that times whole steps, if the result's step times were computed from short steps (with fewer
    micro batches). Once all runs with whole steps have ended, return the result with the figures that they measured.
    """
    number = whole_steps.due(result, snapshot.history)
    if number is not None:
        return NewValidationRun(number, whole_steps.WHOLE_STEP_BLOCK)
    return whole_steps.checked(result, snapshot.history, finalists)


def result_of(
    snapshot: StudySnapshot, finalists: Finalists, ranking_state: final_comparison.RankingState
) -> StudyResult:
    """Result of a study whose final comparison (paired runs that decide) has ended."""
    cost, number = snapshot.final_comparison_cost, snapshot.comparison_number
    return ranking.result(snapshot.history, finalists, ranking_state, cost, number)


def validation_run(snapshot: StudySnapshot, next_run: NextRun, searched: Mapping[int, float]) -> NewValidationRun:
    """Plan the next validation run of a final comparison (paired runs that decide). All runs of one comparison block
    are timed for the same length, which this block determines.
    """
    tokens_per_rank = snapshot.spec.workload.tokens_per_step / snapshot.cluster.world_size
    return NewValidationRun(
        next_run.trial,
        next_run.comparison_block,
        run_length.block_range(next_run, searched, snapshot.validation_runs, tokens_per_rank),
    )


def _check_resume(snapshot: StudySnapshot, result: StudyResult, elapsed_s: float) -> Step:
    """Plan the resume check of the best trial, which must pass before the study's result is stored: the trial trains,
    saves a checkpoint and resumes from it.
    """
    check = resume_check.next_step(result, snapshot.spec, snapshot.resume_runs, snapshot.has_resume_worker)
    if isinstance(check, resume_check.CheckDue):
        used_up = study_budget.why_no_check(snapshot, StudySpent(snapshot.gpu_seconds, elapsed_s))
        if used_up is None:
            return NewResumeRun(result.best.trial_number)
        check = resume_check.unchecked(result.best.trial_number, used_up)
    return _time_sustained(snapshot, result.model_copy(update={"resume_check": check}), elapsed_s)


def _time_sustained(snapshot: StudySnapshot, result: StudyResult, elapsed_s: float) -> Step:
    """Plan the sustained run of the best trial, which shows its speed after minutes of load. It never changes the
    verdict.
    """
    # A study of the service measures an answer again, within a budget of its own.
    if snapshot.system_study is not None:
        return _consider_recipes(snapshot, result)
    number = result.best.trial_number
    best = next(obs for obs in snapshot.history if obs.number == number)
    spent = StudySpent(snapshot.gpu_seconds, elapsed_s)
    sustained = sustained_run.next_step(
        result,
        best,
        snapshot.spec,
        snapshot.cluster,
        snapshot.sustained_runs,
        spent,
        obstacle=snapshot.sustained_obstacle,
        compared_on={run.worker for run in snapshot.validation_runs if run.trial == number},
    )
    if isinstance(sustained, sustained_run.SustainedRunDue):
        return NewSustainedRun(number)
    return _consider_recipes(snapshot, result.model_copy(update={"sustained": sustained}))


def _consider_recipes(snapshot: StudySnapshot, result: StudyResult) -> Step:
    """Plan the next run of the recipes (numerical formats and optimizers) that the user wants compared with the study's
    answer. They never change the answer.
    """
    # A study of the service confirms an answer; its recipes were considered when the answer was found.
    if not snapshot.spec.consider or snapshot.system_study is not None:
        return Complete(result)
    number = result.best.trial_number
    recipes = comparison.state(
        snapshot.spec, snapshot.cluster, snapshot.history, number, snapshot.recipe_runs, snapshot.study_id
    )
    if recipes.next is None:
        return Complete(result.model_copy(update={"recipes": recipes.summaries}))
    reason = _why_no_recipe_run(snapshot, result)
    if reason is None:
        return NewRecipeRun(number, recipes.next.recipe, recipes.next.comparison_block)
    missing = [recipe.name for recipe in recipes.summaries if recipe not in recipes.known]
    notes = [f"recipes ({', '.join(missing)}) were not compared: {reason}"] if missing else []
    return Complete(result.model_copy(update={"recipes": recipes.known, "notes": (*result.notes, *notes)}))


def _why_no_recipe_run(snapshot: StudySnapshot, result: StudyResult) -> str | None:
    """Reason why no further run can compare recipes (numerical formats and optimizers) now; None if one can."""
    if result.verdict is Verdict.TOO_BUSY:
        return "the machine was too busy for a verdict; extend the study on a quiet machine to compare them"
    if snapshot.why_no_optional_runs is not None:
        return snapshot.why_no_optional_runs
    return None if snapshot.has_recipe_worker else "no live worker knows such runs and has the packages of all recipes"
