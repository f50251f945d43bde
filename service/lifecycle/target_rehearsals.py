"""Rehearse the fastest projected configurations of a study at the target's number of ranks: plan the runs, and leave out of
the answer what cannot train there."""

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.api_schemas.studies.target_rehearsals import TargetRehearsal
from shardtune.api_schemas.studies.targets import ProjectedConfig, StudyProjection
from shardtune.api_schemas.trials.rehearsals import RehearsalCode, RehearsalProblem
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.planning.study_steps import NewRehearsalRun
from shardtune.tuner.projection import rehearsal, target_answer, target_rehearsals
from shardtune.tuner.projection.rung_test import Rung
from shardtune.tuner.projection.target_sizes import TargetSizes
from shardtune.tuner.verdict.winner.sustained_run import SustainedObstacle

_REHEARSED = 2
"""Number of configurations that are rehearsed (built and stepped with fake tensors) for a study's target, a larger
cluster: the one projected to be the fastest there, and the next one."""
_MOST_REHEARSED = 4
"""Maximum number of rehearsals of a study. Once it is reached, a configuration that takes the place of a rejected one
is not rehearsed.
"""
_OBSTACLE_CODES: dict[SustainedObstacle, RehearsalCode] = {
    SustainedObstacle.NO_WORKER: "no_worker",
    SustainedObstacle.WORKER_ENDS: "worker_ends",
    SustainedObstacle.QUOTA_USED_UP: "quota_used_up",
    SustainedObstacle.CANCELLED: "cancelled",
}


def answer(
    snapshot: StudySnapshot,
    sizes: TargetSizes,
    measured: list[Contender],
    not_fitting: list[TrialConfig],
    smaller: list[Rung],
) -> StudyProjection | NewRehearsalRun:
    """Projection to the target cluster with its rehearsals (untimed first steps), or the next rehearsal that it
    needs. `smaller` lists smaller clusters on which each rank had the same work.

    Raises:
        ValueError: no measured configuration can run on the target.
    """
    trials = target_answer.project_trials(sizes, measured, not_fitting, smaller)
    settled = {} if snapshot.spec.budget.skip_rehearsal else _ended(snapshot, sizes)
    while True:
        projection = _answer_after(trials, settled)
        candidates = (projection.best, *projection.runners_up)[:_REHEARSED]
        due = next((row for row in candidates if row.config.content_key() not in settled), None)
        if due is None or snapshot.spec.budget.skip_rehearsal or len(settled) >= _MOST_REHEARSED:
            return projection.model_copy(update={"rehearsals": tuple(settled.values())})
        outcome = _rehearse(snapshot, sizes, due)
        if isinstance(outcome, NewRehearsalRun):
            return outcome
        settled[due.config.content_key()] = outcome


def _answer_after(trials: target_answer.ProjectedTrials, settled: dict[str, TargetRehearsal]) -> StudyProjection:
    """Projection (prediction) of the study's configurations to the target cluster, without those that a rehearsal
    there rejected.
    """
    rejected = frozenset(key for key, one in settled.items() if one.outcome == "rejected")
    try:
        return target_answer.answer(trials, rejected)
    except ValueError as error:
        reasons = "; ".join(
            f"{one.description}: {one.problem.message}" for one in settled.values() if one.problem is not None
        )
        raise ValueError(f"{error}. Rehearsed at the target: {reasons}" if rejected else str(error)) from None


def _ended(snapshot: StudySnapshot, sizes: TargetSizes) -> dict[str, TargetRehearsal]:
    """Outcomes of the study's ended rehearsals (untimed first steps) in order of time, by the content key of the
    rehearsed configuration.
    """
    outcomes = {}
    for run in snapshot.rehearsal_runs:
        # A cancelled run says nothing, so the rehearsal is due again. One that waits has no worker that knows it.
        if run.state not in (TrialState.CANCELLED, TrialState.WAITING, TrialState.RUNNING):
            trial = target_rehearsals.trial_at_target(snapshot.spec, snapshot.cluster, run.config)
            outcomes[run.config.content_key()] = target_rehearsals.of_run(sizes, trial, run)
    return outcomes


def _rehearse(snapshot: StudySnapshot, sizes: TargetSizes, due: ProjectedConfig) -> TargetRehearsal | NewRehearsalRun:
    """Outcome of a configuration's rehearsal (untimed first steps), if it is known without starting processes; else
    the run that must rehearse the configuration.
    """
    trial = target_rehearsals.trial_at_target(snapshot.spec, snapshot.cluster, due.config)
    planned = rehearsal.plan(trial)
    obstacle = snapshot.why_no_optional_runs
    if not isinstance(planned, RehearsalProblem) and snapshot.has_rehearsal_worker and obstacle is None:
        return NewRehearsalRun(due.trial_number, due.config)
    problem = planned if isinstance(planned, RehearsalProblem) else _left_out(snapshot)
    return target_rehearsals.of_problem(sizes, trial, due.trial_number, due.config, problem)


def _left_out(snapshot: StudySnapshot) -> RehearsalProblem:
    """Reason why a rehearsal is left out although the configuration could be rehearsed."""
    obstacle, reason = snapshot.sustained_obstacle, snapshot.why_no_optional_runs
    if obstacle is None or reason is None:
        return RehearsalProblem(code="no_worker", message="no live worker is of a release that knows rehearsals")
    return RehearsalProblem(code=_OBSTACLE_CODES[obstacle], message=reason)
