"""Decide a study's next step from one consistent snapshot. Nothing here reads the database, writes or waits.

`plan_next_step` runs outside any transaction; `service.lifecycle.advance` applies its step only if the study is unchanged, except
for runs that ended while a new trial was planned.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from shardtune.api_schemas.studies.reasons import StudyReason, StudyReasonCode
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import Rejection, TrialOrigin
from shardtune.service.planning import agreement, study_budget, study_sampler
from shardtune.service.planning.final_steps import next_confirmation
from shardtune.service.planning.planner_cache import PlannerCache
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.planning.study_steps import Fail, NewTrial, StartFinalComparison, Step, Wait
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction import learning, memory_gate, traced_shape
from shardtune.tuner.prediction.shapes import calibration_choice
from shardtune.tuner.search import seeds, space, stopping, suggest, warm_start
from shardtune.tuner.verdict import budget_left, parity, ranking, run_length
from shardtune.tuner.verdict.budget_left import StudySpent
from shardtune.tuner.verdict.winner import resume_check


def parity_groups_so_far(history: Sequence[Observation], spec: StudySpec) -> parity.ParityGroups:
    """Group the trials of a study by parity (equal losses) while the search still runs, as far as this is possible
    then.
    """
    is_single = len(spec.space.backends) == 1
    workload = spec.workload
    return parity.group_by_parity(history, workload.precision, is_single, workload.optimizer, workload.float8)


def validation_failure(
    history: Sequence[Observation],
    rejected: Sequence[Rejection],
    spec: StudySpec,
    number: int,
    measurement: Measurement,
) -> Failure | None:
    """Failure of a validation run whose losses diverge from the study's reference; None if the losses agree with the
    reference, or the study has no reference.
    """
    reference = agreement.final_parity_groups(history, rejected, spec).parity_groups.reference
    trials_by_number = {obs.number: obs for obs in history}
    if reference is None or number not in trials_by_number:
        return None
    repeated = replace(trials_by_number[number], measurement=measurement)
    bounds = parity.tolerance(spec.workload.precision, spec.workload.optimizer, spec.workload.float8)
    reason = parity.difference(trials_by_number[reference], repeated, bounds)
    return Failure(kind=FailureKind.NUMERICS, message=reason) if reason else None


def plan_next_step(snapshot: StudySnapshot, planner_cache: PlannerCache, now: datetime, may_ask: bool) -> Step:
    """Plan the next step of a study. With `may_ask` False, plan only steps that need no worker: if the sampler would
    have to suggest a configuration, the study waits.
    """
    if snapshot.state is not StudyState.RUNNING or snapshot.model_summary is None:
        return Wait()
    spent = StudySpent(snapshot.gpu_seconds, (now - snapshot.started_at).total_seconds())
    if snapshot.phase is StudyPhase.FINAL_COMPARISON and snapshot.final_comparison is not None:
        return next_confirmation(snapshot, snapshot.final_comparison, spent.elapsed_s)
    # A final comparison without finalists lost a trial and begins anew: its finalists are picked again from what is
    # left.
    if snapshot.phase is StudyPhase.FINAL_COMPARISON:
        return _end_search(snapshot, spent, None, ())
    reason = stopping.stop_reason(snapshot.history, snapshot.spec.budget, *spent)
    if reason is not None:
        return _end_search(snapshot, spent, reason, ())
    return _next_trial(snapshot, spent, snapshot.model_summary, planner_cache) if may_ask else Wait()


def _next_trial(
    snapshot: StudySnapshot, spent: StudySpent, model_summary: ModelSummary, planner_cache: PlannerCache
) -> Step:
    spec = snapshot.spec
    # Kept per study: building a space takes long, and it depends only on what never changes after the model summary.
    try:
        search_space = planner_cache.space(
            snapshot.study_id,
            lambda: space.build(spec.workload, snapshot.cluster, model_summary, spec.space, snapshot.cpu_count),
        )
    except ValueError as error:
        return Fail(StudyReason(code=StudyReasonCode.EMPTY_SPACE, text=str(error)))
    shape, calibrations = traced_shape.of_study(spec.model, model_summary, spec.workload.adapter), snapshot.calibrations
    memory = calibration_choice.memory_calibration(calibrations, shape)
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
    # The trials that every search begins with run first: the baseline is one of them, and a second one agrees with it.
    if stop_reason is None and suggestion.origin is TrialOrigin.SAMPLER:
        stop_reason = why_rest_is_kept(snapshot, spent)
    # Even where a configuration is left, expected gains may be too small to go on.
    if stop_reason is not None:
        return _end_search(snapshot, spent, stop_reason, suggestion.rejections)
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
    return _end_search(snapshot, spent, stopping.ALL_TRIED, suggestion.rejections)


def why_rest_is_kept(snapshot: StudySnapshot, spent: StudySpent) -> StudyReason | None:
    """Reason to end a search because the rest of its limits of GPU-seconds and time is needed for the final comparison;
    None if another trial fits."""
    if not budget_left.is_limited(snapshot.spec.budget):
        return None
    groups = parity_groups_so_far(snapshot.history, snapshot.spec)
    field = ranking.pick_finalists(snapshot.history, snapshot.baseline is not None, groups)
    return study_budget.why_search_ends(snapshot, field, spent)


def _end_search(
    snapshot: StudySnapshot, spent: StudySpent, reason: StudyReason | None, rejections: tuple[Rejection, ...]
) -> Step:
    """Plan what follows a search that has ended: wait for runs that still execute, then choose the finalists. If
    there are none, fail the study with the reason.
    """
    if snapshot.has_open_run:
        return Wait(rejections)
    rejected = (*snapshot.rejected, *rejections)
    final_parity = agreement.final_parity_groups(snapshot.history, rejected, snapshot.spec)
    failure = agreement.why_no_winner(snapshot.history, rejected, snapshot.spec, final_parity.parity_groups)
    if failure is not None:
        if reason is not None and not snapshot.history and not rejected:
            # A budget too small for a single trial says nothing about what fits.
            return Fail(reason, rejections)
        return Fail(_with_end_of_search(failure, reason if snapshot.history else None), rejections)
    field = ranking.pick_finalists(snapshot.history, snapshot.baseline is not None, final_parity.parity_groups)
    field = study_budget.fitting_finalists(snapshot, field, spent)
    differences = agreement.measured_differences(
        snapshot.history, snapshot.spec.workload, snapshot.cluster, final_parity.parity_groups
    )
    notes = *snapshot.notes, *final_parity.notes, *differences, *field.notes, *resume_check.notes(snapshot.resume_runs)
    field = replace(field, notes=notes)
    return StartFinalComparison(field, reason, rejections)


def _with_end_of_search(failure: StudyReason, reason: StudyReason | None) -> StudyReason:
    # If nothing ran, the failure itself says why the search ended.
    if reason is None:
        return failure
    details = (failure.details, f"search ended: {reason.sentence}")
    return failure.model_copy(update={"details": "; ".join(part for part in details if part)})
