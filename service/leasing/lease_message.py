"""Build the lease message for a worker: the task of the run, and time limits in seconds from now."""

from sqlalchemy.orm import Session

from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from shardtune.api_schemas.trials.leases import (
    Lease,
    ModelSummaryTask,
    ResumeTask,
    TargetRehearsalTask,
    Task,
    TraceTask,
    TrialTask,
)
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.trial import AttemptEnd, RunPurpose, TrialOrigin, TrialState
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow, TrialRow
from shardtune.service.leasing import host_exclusivity, quiet_waits, run_limits
from shardtune.service.process.context import Context
from shardtune.service.workers import protocol_limits
from shardtune.tuner.objective import available_gib
from shardtune.tuner.projection import target_rehearsals
from shardtune.tuner.verdict import run_length, short_steps
from shardtune.tuner.verdict.recipes import configs
from shardtune.tuner.verdict.whole_steps import WHOLE_STEP_BLOCK
from shardtune.tuner.verdict.winner import sustained_run


def lease(context: Context, session: Session, study: StudyRow, run: RunRow) -> Lease:
    """Build the message that gives a worker its lease of a run: the task, and the limits of the run's current
    attempt.
    """
    assert run.state is TrialState.RUNNING and run.started_at is not None
    settings = context.settings
    # Limits are sent as seconds from now, not as times: the worker's clock may be wrong, and it must count on a
    # monotonic one.
    elapsed_s = (context.now() - run.started_at).total_seconds()
    task = task_of(context, study, run)
    limits = run_limits.of(settings, run, task, _parameters(study))
    return Lease(
        run_id=run.id,
        attempt=run.attempt,
        study_id=study.id,
        trial_number=run.trial.number if run.trial else None,
        task=task,
        lease_s=settings.lease_s,
        heartbeat_s=settings.heartbeat_s,
        deadline_s=max(1.0, limits.deadline_s - elapsed_s),
        no_progress_s=limits.no_progress_s,
        is_exclusive=host_exclusivity.needs_exclusive_host(run.purpose, study.system_study),
        quiet_wait=quiet_waits.order(session, study, run),
    )


def deadline_s(context: Context, study: StudyRow, run: RunRow) -> float:
    """Maximum duration of a run in seconds, which the lease states for its worker."""
    return run_limits.of(context.settings, run, task_of(context, study, run), _parameters(study)).deadline_s


def foreseen_s(context: Context, study: StudyRow, run: RunRow) -> float:
    """Number of seconds within which a waiting run is expected to end."""
    return run_limits.foreseen_s(run, task_of(context, study, run), _parameters(study))


def _parameters(study: StudyRow) -> int:
    """Number of the model's parameters; 0 as long as no worker has counted them."""
    return study.model_summary.parameters if study.model_summary is not None else 0


def why_inexpressible(context: Context, study: StudyRow, run: RunRow, protocol_version: int) -> str | None:
    """Reason why a run's task cannot be expressed in the protocol version that a worker speaks; None if it can."""
    if protocol_version >= PROTOCOL_VERSION:
        return None
    task = task_of(context, study, run)
    return protocol_limits.why_inexpressible(task.workload, task, protocol_version)


def task_of(context: Context, study: StudyRow, run: RunRow) -> Task:
    """Build the task that a worker has to execute for a run."""
    spec = study.spec
    if run.trial is None:
        return ModelSummaryTask(model=spec.model, workload=spec.workload)
    # The summary is the first run of every study; no trial exists before it has ended.
    assert study.model_summary is not None
    if run.rehearsed_config is not None:
        rehearsed = target_rehearsals.trial_at_target(spec, study.cluster, run.rehearsed_config)
        return TargetRehearsalTask(trial=rehearsed, parts=target_rehearsals.parts(rehearsed))
    on_cpu = study.cluster.device == "cpu"
    workload, config = spec.workload, run.trial.config
    if run.recipe is not None:
        workload, config = configs.workload_of(spec, run.recipe), run.recipe.config
    trial = TrialTask(
        model=spec.model,
        workload=workload,
        cluster=study.cluster,
        config=config,
        plan=_measure_plan(context.settings.measure, study, run, run.trial),
        # Only CPU ranks are held to a limit by the worker: on a GPU the device itself runs out of memory.
        memory_limit_gib=available_gib(study.cluster, spec.objective) if on_cpu else None,
        forward_flops_per_token=study.model_summary.forward_flops_per_token,
        training_flops_per_token=study.model_summary.training_flops_per_token,
        least_flops_per_token=study.model_summary.least_flops_per_token,
        leaves_parameters_unused=study.model_summary.leaves_parameters_unused,
    )
    if run.purpose == RunPurpose.TRACE:
        return TraceTask.of(trial.model_copy(update={"plan": context.settings.measure}))
    return (
        ResumeTask(trial=trial, plan=context.settings.resume_check) if run.purpose == RunPurpose.RESUME_CHECK else trial
    )


def _measure_plan(default_plan: MeasurePlan, study: StudyRow, run: RunRow, trial: TrialRow) -> MeasurePlan:
    """Measurement plan of a run (warm-up, number and length of its timed windows). Its precision depends on the
    decision that the run is for.
    """
    if run.recipe is not None:
        # Whole steps: losses of two recipes compare over the batches that a training has.
        return default_plan.model_copy(update={"loss_steps": run.recipe.loss_steps})
    if run.purpose == RunPurpose.SUSTAINED:
        return sustained_run.measure_plan(
            default_plan,
            study.spec.budget.sustained_seconds(study.cluster.device),
            run_limits.measured_step_s(trial),
            study.parity_samples,
            trial.config,
            study.spec.workload,
            study.cluster,
        )
    # Only sampled trials may be pruned. Baselines, defaults and validation runs are what an answer rests on, so they
    # are always timed in full.
    is_sampled = run.purpose == RunPurpose.SEARCH and trial.origin == TrialOrigin.SAMPLER
    budget = study.spec.budget
    # Whether other programs disturbed a run shows only at its end. Where nothing is repeated, a run that ended early
    # could count although disturbed, so every run is timed in full.
    may_prune = is_sampled and budget.prune and budget.repeat_disturbed > 0
    # A run that was disturbed before may be disturbed again, and would then seem too slow: it is timed in full.
    if may_prune and run.attempt > 1:
        may_prune = not any(row.end is AttemptEnd.DISTURBED for row in run.attempts)
    return short_steps.measure_plan(
        run_length.measure_plan(default_plan, run.undecided_s, may_prune),
        study.parity_samples,
        trial.config,
        study.spec.workload,
        study.cluster,
        times_whole_step=run.comparison_block == WHOLE_STEP_BLOCK,
    )
