"""Decide a study's next step from one consistent snapshot. Nothing here reads the database, writes or waits.

`plan_next_step` runs outside any transaction; `service.lifecycle.advance` applies its step only if the study is unchanged, except
for runs that ended while a new trial was planned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.recipes import RecipeRun
from shardtune.api_schemas.studies.study import StudyPhase, StudyResult, StudySpec, StudyState, Verdict
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.measurements import Measurement, StepTimeRange
from shardtune.api_schemas.trials.predictions import TrialPrediction
from shardtune.api_schemas.trials.trial import Rejection, TrialOrigin, TrialReason
from shardtune.service.planning import agreement, study_sampler
from shardtune.service.planning.planner_cache import PlannerCache
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction import learning, memory_gate, traced_shape
from shardtune.tuner.search import seeds, space, stopping, suggest, warm_start
from shardtune.tuner.verdict import final_comparison, parity, ranking, resume_check, run_length, whole_steps
from shardtune.tuner.verdict.comparison_blocks import NextRun
from shardtune.tuner.verdict.recipes import comparison


@dataclass(frozen=True)
class Wait:
    """Step of a study: wait until a run ends or a worker requests work."""

    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True)
class NewTrial:
    """Step of a study: add a trial of this configuration."""

    config: TrialConfig
    origin: TrialOrigin
    rejections: tuple[Rejection, ...]
    prediction: TrialPrediction | None
    reason: TrialReason | None = None
    undecided_s: StepTimeRange | None = None
    """Range of step times, in seconds, within which the trial's measurement has to be precise."""


@dataclass(frozen=True)
class NewValidationRun:
    """Step of a study: add a validation run of this trial to this block of the final comparison (paired runs that
    decide).
    """

    trial_number: int
    comparison_block: int
    undecided_s: StepTimeRange | None = None


@dataclass(frozen=True)
class NewResumeRun:
    """Step of a study: add a resume check (save, resume from the checkpoint, compare losses) of this trial, for which
    the final comparison is already decided.
    """

    trial_number: int


@dataclass(frozen=True)
class NewRecipeRun:
    """Step of a study: add a run of a considered recipe, or of the stated one beside it, to this block of their
    comparison.
    """

    trial_number: int
    """Number of the trial that is the study's answer."""
    recipe: RecipeRun
    comparison_block: int


@dataclass(frozen=True)
class StartFinalComparison:
    """Step of a study: end the search, and compare these finalists, or check the only finalist."""

    final_comparison: Finalists
    reason: str | None
    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True)
class Complete:
    """Step of a study: complete the study with its result."""

    result: StudyResult
    reason: str | None = None
    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True)
class Fail:
    """Step of a study: fail the study, because it cannot have a result."""

    reason: str
    rejections: tuple[Rejection, ...] = ()


Step = Wait | NewTrial | NewValidationRun | NewResumeRun | NewRecipeRun | StartFinalComparison | Complete | Fail


def parity_groups_so_far(history: Sequence[Observation], spec: StudySpec) -> parity.ParityGroups:
    """Group the trials by parity (equal losses), as far as this is known while the search runs."""
    is_single = len(spec.space.backends) == 1
    return parity.group_by_parity(history, spec.workload.precision, is_single, spec.workload.optimizer)


def validation_failure(
    history: Sequence[Observation],
    rejected: Sequence[Rejection],
    spec: StudySpec,
    number: int,
    measurement: Measurement,
) -> Failure | None:
    """Failure of a validation run whose losses diverge from the study's reference. None: the run's losses repeat those
    of its trial.
    """
    reference = agreement.final_parity_groups(history, rejected, spec).parity_groups.reference
    trials_by_number = {obs.number: obs for obs in history}
    if reference is None or number not in trials_by_number:
        return None
    repeated = replace(trials_by_number[number], measurement=measurement)
    bounds = parity.tolerance(spec.workload.precision, spec.workload.optimizer)
    reason = parity.difference(trials_by_number[reference], repeated, bounds)
    return Failure(kind=FailureKind.NUMERICS, message=reason) if reason else None


def plan_next_step(snapshot: StudySnapshot, planner_cache: PlannerCache, now: datetime, may_ask: bool) -> Step:
    """Plan the next step of a study. With `may_ask` False, plan only steps that need no worker: a study that would need
    the sampler's next suggestion waits.
    """
    if snapshot.state is not StudyState.RUNNING or snapshot.model_summary is None:
        return Wait()
    if snapshot.phase is StudyPhase.FINAL_COMPARISON and snapshot.final_comparison is not None:
        return _next_confirmation(snapshot, snapshot.final_comparison)
    # A final comparison without finalists lost a trial and begins anew: its finalists are picked again from what is
    # left.
    if snapshot.phase is StudyPhase.FINAL_COMPARISON:
        return _end_search(snapshot, None, ())
    elapsed_s = (now - snapshot.started_at).total_seconds()
    reason = stopping.stop_reason(snapshot.history, snapshot.spec.budget, snapshot.gpu_seconds, elapsed_s)
    if reason is not None:
        return _end_search(snapshot, reason, ())
    return _next_trial(snapshot, snapshot.model_summary, planner_cache) if may_ask else Wait()


def _next_trial(snapshot: StudySnapshot, model_summary: ModelSummary, planner_cache: PlannerCache) -> Step:
    spec = snapshot.spec
    # Kept per study: building a space takes long, and it depends only on what never changes after the model summary.
    try:
        search_space = planner_cache.space(
            snapshot.study_id,
            lambda: space.build(spec.workload, snapshot.cluster, model_summary, spec.space, snapshot.cpu_count),
        )
    except ValueError as error:
        return Fail(str(error))
    shape, calibrations = traced_shape.of_study(spec.model, model_summary, spec.workload.adapter), snapshot.calibrations
    memory = learning.memory_calibration(calibrations, shape)
    sampler = study_sampler.sampler_of(snapshot, search_space, shape, planner_cache)
    challengers = snapshot.system_study.challengers if snapshot.system_study is not None else ()
    suggestion = suggest.next_config(
        search_space,
        study_sampler.seeds_of(
            snapshot, seeds.seed_configs(search_space, snapshot.cluster, snapshot.baseline, challengers), shape
        ),
        snapshot.history,
        {rejection.config.content_key() for rejection in snapshot.rejected},
        lambda config: memory_gate.reject_if_too_large(
            config, shape, spec.workload, snapshot.cluster, spec.objective, memory
        ),
        spec.seed,
        warm_start.scaled_trials(snapshot.warm_start, snapshot.history),
        sampler,
    )
    stop_reason = stopping.no_gain_reason(suggestion.reason, snapshot.history, spec.budget)
    # Even where a configuration is left, expected gains may be too small to go on.
    if stop_reason is not None:
        return _end_search(snapshot, stop_reason, suggestion.rejections)
    if suggestion.config is not None:
        assert suggestion.origin is not None
        prediction = learning.predict_trial(
            shape, spec.workload, snapshot.cluster, suggestion.config, calibrations, snapshot.hardware
        )
        return NewTrial(
            suggestion.config,
            suggestion.origin,
            suggestion.rejections,
            prediction,
            suggestion.reason,
            run_length.search_range(snapshot.history, parity_groups_so_far(snapshot.history, spec).infeasible),
        )
    return _end_search(snapshot, stopping.EXHAUSTED, suggestion.rejections)


def _end_search(snapshot: StudySnapshot, reason: str | None, rejections: tuple[Rejection, ...]) -> Step:
    """Wait for the search's open runs, then choose the finalists, or fail the study with the reason why there are
    none.
    """
    if snapshot.has_open_run:
        return Wait(rejections)
    rejected = (*snapshot.rejected, *rejections)
    final_parity = agreement.final_parity_groups(snapshot.history, rejected, snapshot.spec)
    failure = agreement.why_no_winner(snapshot.history, rejected, snapshot.spec, final_parity.parity_groups)
    if failure is not None:
        # If nothing ran, the failure itself gives the reason.
        return Fail(
            failure if reason is None or not snapshot.history else f"{failure} (search ended: {reason})", rejections
        )
    field = ranking.pick_finalists(snapshot.history, snapshot.baseline is not None, final_parity.parity_groups)
    differences = agreement.measured_differences(
        snapshot.history, snapshot.spec.workload.precision, snapshot.cluster, final_parity.parity_groups
    )
    notes = *snapshot.notes, *final_parity.notes, *differences, *field.notes, *resume_check.notes(snapshot.resume_runs)
    field = replace(field, notes=notes)
    return StartFinalComparison(field, reason, rejections)


def _next_confirmation(snapshot: StudySnapshot, finalists: Finalists) -> Step:
    if snapshot.has_open_run and not snapshot.is_stranded:
        # A stranded run can never take place, so it does not hold up the result.
        return Wait()
    if not finalists.needs_runs:
        return _finish(snapshot, finalists, ranking.result_of_baseline(snapshot.history, finalists))
    searched = ranking.search_speeds(snapshot.history)
    ranking_state = final_comparison.ranking_state(
        finalists,
        searched,
        snapshot.validation_runs,
        snapshot.spec.budget.max_pairs,
        snapshot.study_id,
        disturbed_searches=ranking.disturbed_searches(snapshot.history),
    )
    if ranking_state.next is not None:
        return validation_run(snapshot, ranking_state.next, searched)
    return _finish(snapshot, finalists, result_of(snapshot, finalists, ranking_state))


def _finish(snapshot: StudySnapshot, finalists: Finalists, result: StudyResult) -> Step:
    confirmed = confirm_extension(snapshot, finalists, result)
    return confirmed if isinstance(confirmed, NewValidationRun) else _check_resume(snapshot, confirmed)


def confirm_extension(
    snapshot: StudySnapshot, finalists: Finalists, result: StudyResult
) -> NewValidationRun | StudyResult:
    """Plan the next run that times whole steps, which a result from short steps needs. Where none is missing, return
    the result with the figures of these runs.
    """
    number = whole_steps.due(result, snapshot.history)
    if number is not None:
        return NewValidationRun(number, whole_steps.WHOLE_STEP_BLOCK)
    return whole_steps.checked(result, snapshot.history, finalists)


def result_of(
    snapshot: StudySnapshot, finalists: Finalists, ranking_state: final_comparison.RankingState
) -> StudyResult:
    """Result of a study whose final comparison has ended."""
    cost, number = snapshot.final_comparison_cost, snapshot.comparison_number
    return ranking.result(snapshot.history, finalists, ranking_state, cost, number)


def validation_run(snapshot: StudySnapshot, next_run: NextRun, searched: Mapping[int, float]) -> NewValidationRun:
    """Plan the next validation run of a final comparison, with timed windows as long as its comparison block needs."""
    tokens_per_rank = snapshot.spec.workload.tokens_per_step / snapshot.cluster.world_size
    return NewValidationRun(
        next_run.trial,
        next_run.comparison_block,
        run_length.block_range(next_run, searched, snapshot.validation_runs, tokens_per_rank),
    )


def _check_resume(snapshot: StudySnapshot, result: StudyResult) -> Step:
    """Plan the resume check of the best trial (train, save, resume), which must pass before the study's result is
    stored.
    """
    check = resume_check.next_step(result, snapshot.spec, snapshot.resume_runs, snapshot.has_resume_worker)
    if isinstance(check, resume_check.CheckDue):
        return NewResumeRun(result.best.trial_number)
    return _consider_recipes(snapshot, result.model_copy(update={"resume_check": check}))


def _consider_recipes(snapshot: StudySnapshot, result: StudyResult) -> Step:
    """Plan the next run of the recipes that the study considers beside its answer, which they never change."""
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
    """Reason why no further run can compare recipes now; None if one can."""
    if result.verdict is Verdict.TOO_BUSY:
        return "the machine was too busy for a verdict; extend the study on a quiet machine to compare them"
    return None if snapshot.has_recipe_worker else "no live worker is of a release that knows such runs"
