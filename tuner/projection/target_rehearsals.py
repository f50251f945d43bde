"""Rehearsals of a study's projected configurations: which trial a run rehearses, and what its end says."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.target_rehearsals import RehearsalOutcome, TargetRehearsal
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.leases import RehearsalTask, TrialTask
from shardtune.api_schemas.trials.rehearsals import (
    REJECTIONS,
    Rehearsal,
    RehearsalProblem,
    RehearsalReport,
    RehearsedRank,
)
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.objective import available_gib
from shardtune.tuner.projection import rehearsal, rungs
from shardtune.tuner.projection.target_sizes import TargetSizes

_MOST_RATIO = 100.0
"""Largest believable ratio of a rehearsed memory peak to the predicted one, or of the predicted to the rehearsed one.
On layouts of a 70B the two differ by 2 % at most."""


@dataclass(frozen=True)
class RehearsalRun:
    """Run of a study that rehearses one configuration: steps it without GPUs at the target's number of ranks, to see
    whether it trains and fits."""

    trial_number: int
    config: TrialConfig
    """Configuration on the target."""
    state: TrialState
    report: RehearsalReport | None = None
    failure: Failure | None = None


def trial_at_target(spec: StudySpec, cluster: Cluster, config: TrialConfig) -> TrialTask:
    """Build the trial of a configuration on the study's target, to rehearse it; `torch.compile` is switched off.

    `cluster`: the study's own, smaller cluster.
    """
    assert spec.target is not None
    there = rungs.target_cluster(cluster, spec.target)
    batch = spec.workload.global_batch * there.world_size // cluster.world_size
    return TrialTask(
        model=spec.model,
        workload=spec.workload.model_copy(update={"global_batch": batch}),
        cluster=there,
        config=config.without_compile(),
    )


def parts(trial: TrialTask) -> tuple[RehearsalTask, ...]:
    """Tasks of the processes that rehearse a trial (step it without GPUs) in a run that the service has already
    planned."""
    planned = rehearsal.plan(trial)
    if isinstance(planned, RehearsalProblem):
        # The release that planned the run did not reject it. Its end says so (`of_run`), whatever its worker answers; an
        # error here would meet every request for work, and every look at the run's time limit.
        return (RehearsalTask(trial=trial, rank=0, micro_batches=1),)
    return tuple(planned)


def of_problem(
    sizes: TargetSizes, trial: TrialTask, trial_number: int, config: TrialConfig, problem: RehearsalProblem
) -> TargetRehearsal:
    """Outcome for a configuration that was not rehearsed (stepped without GPUs) because of a problem known before any
    process ran."""
    result = rehearsal.combine(trial, (), problem, _predicted_gib(sizes, trial.config))
    return _outcome(result, trial_number, config)


def of_run(sizes: TargetSizes, trial: TrialTask, run: RehearsalRun) -> TargetRehearsal:
    """Outcome of a rehearsal run (steps without GPUs) that has ended.

    `trial`: the configuration on the target, in the form in which it was rehearsed.
    """
    predicted = _predicted_gib(sizes, trial.config)
    planned = rehearsal.plan(trial)
    if isinstance(planned, RehearsalProblem):
        # This release rejects what the one that planned the run did not.
        return of_problem(sizes, trial, run.trial_number, run.config, planned)
    problem = _problem_of(run, planned)
    seen: Sequence[RehearsedRank] = ()
    if problem is None:
        assert run.report is not None
        seen = [answer.seen for answer in run.report.answers if answer.seen is not None]
    # Compiled blocks keep less, and a compiled loss too, so that the peak without compilation proves nothing against them.
    available = None if run.config.compiles else available_gib(sizes.there, sizes.objective)
    result = rehearsal.combine(trial, seen, problem, predicted, available)
    if result.allocated_gib is not None and not _is_believable(result.allocated_gib, predicted):
        far = (
            f"the rehearsed peak ({result.allocated_gib:.3g} GiB) is not within {_MOST_RATIO:g} times the predicted one"
        )
        problem = RehearsalProblem(code="suspect", message=f"{far} ({predicted:.3g} GiB)")
        result = rehearsal.combine(trial, (), problem, predicted)
    return _outcome(result, run.trial_number, run.config)


def _problem_of(run: RehearsalRun, planned: Sequence[RehearsalTask]) -> RehearsalProblem | None:
    """Reason why a rehearsal run (steps without GPUs) that has ended says nothing about its configuration; None where
    every process answered."""
    if run.report is None:
        kind = "cancelled" if run.failure is None else run.failure.kind.value
        message = "the run was cancelled" if run.failure is None else f"the run failed: {run.failure.message}"
        return RehearsalProblem(code="run_failed", field="failure", value=kind, message=message[:2000])
    problem = run.report.answers[-1].problem
    if problem is not None and problem.code == "over_memory":
        # A worker knows no limit; the peak is compared here.
        return RehearsalProblem(code="suspect", message="the worker reported a limit of memory that it was not given")
    return problem or _contradiction(run.report, planned)


def _contradiction(report: RehearsalReport, planned: Sequence[RehearsalTask]) -> RehearsalProblem | None:
    """Problem of a rehearsal (steps without GPUs) whose reported figures contradict its task or each other; None where
    they may be true."""
    seen = [answer.seen for answer in report.answers if answer.seen is not None]
    if [one.rank for one in seen] != [part.rank for part in planned]:
        reason = f"the worker answered for ranks {[one.rank for one in seen]}, not {[part.rank for part in planned]}"
    elif any(one.peak_bytes == 0 or sum(one.parts.values()) > one.peak_bytes for one in seen):
        reason = "a rehearsed rank reports a peak of 0 bytes, or less than its parts have together"
    elif any(
        few.rank == many.rank and (few.blocks >= many.blocks or few.peak_bytes > many.peak_bytes)
        for few, many in pairwise(seen)
    ):
        reason = "a rank reports less memory with more blocks"
    else:
        return None
    return RehearsalProblem(code="suspect", message=f"{reason}; nothing is concluded from them")


def _is_believable(peak_gib: float, predicted_gib: float | None) -> bool:
    return not predicted_gib or predicted_gib / _MOST_RATIO <= peak_gib <= predicted_gib * _MOST_RATIO


def _predicted_gib(sizes: TargetSizes, config: TrialConfig) -> float:
    return sizes.predict([config], sizes.there)[0].predicted.memory_gib


def _outcome(result: Rehearsal, trial_number: int, config: TrialConfig) -> TargetRehearsal:
    outcome: RehearsalOutcome = "built"
    if result.problem is not None:
        outcome = "rejected" if result.problem.code in REJECTIONS else "not_rehearsed"
    return TargetRehearsal(
        trial_number=trial_number,
        config=config,
        description=config.describe(),
        ranks=result.ranks,
        outcome=outcome,
        problem=result.problem,
        allocated_gib=result.allocated_gib,
        predicted_gib=result.predicted_gib,
        available_gib=result.available_gib,
        process_groups=result.process_groups,
        set_up_s=result.set_up_s,
        without_compile=config.compiles,
    )
