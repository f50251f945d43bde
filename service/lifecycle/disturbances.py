"""Decide whether a successful run counts, or must be repeated because it was disturbed: by other programs, lowered GPU
clocks, or something unknown that its spread shows."""

from sqlalchemy.orm import Session

from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import AttemptEnd, RunPurpose, TrialState
from shardtune.db.queries import events, fingerprints, leases
from shardtune.service.lifecycle.locked_run import LockedRun
from shardtune.tuner.verdict import budget_left, disturbance
from shardtune.tuner.verdict.budget_left import StudySpent
from shardtune.tuner.verdict.whole_steps import WHOLE_STEP_BLOCK

_JUDGED = (TrialState.COMPLETE, TrialState.PRUNED)
"""States of runs whose measurement was checked for disturbances."""
_EXTENDED = (EventType.STUDY_EXTENDED,)


def judge(
    session: Session, locked_run: LockedRun, measurement: Measurement, spent: StudySpent
) -> Measurement | Failure:
    """Check whether a run's measurement was disturbed. If the run must therefore be repeated, returns a failure. Else
    returns the measurement, with a mark if it is disturbed, and with the number of CPU cores that were left for the
    run's ranks.

    The caller has locked the run. `spent`: what the study has spent, this run included.
    """
    study, repeat_limit = locked_run.study, locked_run.study.spec.budget.repeat_disturbed
    foreign = measurement.conditions.foreign_cpu_cores if measurement.conditions is not None else None
    cores = _cpu_count(session, locked_run) if foreign else None
    left = disturbance.cores_left(foreign, study.cluster, cores) if foreign and cores else None
    # Set here whatever the worker reported: the service decides both fields.
    measurement = measurement.model_copy(update={"disturbed": None, "cores_left": left})
    # Judged even where nothing is repeated: a disturbed run must neither end early nor pass as undisturbed.
    reason = disturbance.reason(measurement, study.cluster, lambda: cores)
    throttled = disturbance.throttling(measurement) if reason is None else None
    if reason is None and throttled is None:
        return measurement
    repeats_of_run = locked_run.ends.count(AttemptEnd.DISTURBED)
    may_repeat = _may_repeat(session, locked_run, repeats_of_run, spent)
    if reason is None:
        # Once: a GPU that is throttled again will be so in the owner's job.
        if may_repeat and repeats_of_run == 0:
            return Failure(kind=FailureKind.DISTURBED, message=throttled or "", conditions=measurement.conditions)
        return measurement
    # A run that ended early was not measured: it is repeated once, in full, even where the study's repeats are used up.
    must_repeat = measurement.is_pruned and repeat_limit > 0 and repeats_of_run == 0
    if may_repeat or must_repeat:
        return Failure(kind=FailureKind.DISTURBED, message=reason, conditions=measurement.conditions)
    return measurement.model_copy(update={"disturbed": reason})


def _may_repeat(session: Session, locked_run: LockedRun, repeats_of_run: int, spent: StudySpent) -> bool:
    """Whether a disturbed run may be repeated under the budget of its study."""
    study, run = locked_run.study, locked_run.run
    # Lowered clocks are what a sustained run is to show, and it is too long to be repeated.
    if run.purpose == RunPurpose.SUSTAINED:
        return False
    # The run that reaches a limit of GPU-seconds or time may exceed it, its repeats may not.
    is_limited = run.purpose != RunPurpose.RECIPE and run.comparison_block != WHOLE_STEP_BLOCK
    if is_limited and budget_left.shortage(study.spec.budget, spent, 0.0, study.cluster.world_size) is not None:
        return False
    # Repeats are bounded per run and per study: a machine that never gets quiet must not hold up a study.
    repeats_of_study = leases.count_attempts_by_end(session, study.id, AttemptEnd.DISTURBED)
    complete_runs = sum(each.state is TrialState.COMPLETE for trial in locked_run.trials for each in trial.runs)
    return disturbance.may_repeat(
        study.spec.budget.repeat_disturbed,
        repeats_of_run,
        repeats_of_study,
        complete_runs,
        _discarded_in_a_row(session, locked_run),
    )


def _discarded_in_a_row(session: Session, locked_run: LockedRun) -> int:
    """Number of the study's runs that were discarded on the run's worker since the last undisturbed run there, or since
    the study was extended if that is later."""
    worker = locked_run.run.worker_id
    undisturbed = [
        run.finished_at
        for trial in locked_run.trials
        for run in trial.runs
        # Other ends were not judged: a run over the memory limit has a measurement without a mark.
        if run.worker_id == worker and run.state in _JUDGED
        if run.finished_at and run.measurement and run.measurement.disturbed is None
    ]
    # Who extends a study may have ended the load, so what was steady before says nothing of the runs that follow.
    extended = [event.created_at for event in events.newest(session, locked_run.study.id, _EXTENDED, 1)]
    last = max((*undisturbed, *extended), default=None)
    return leases.count_attempts_by_end(session, locked_run.study.id, AttemptEnd.DISTURBED, worker, last)


def _cpu_count(session: Session, locked_run: LockedRun) -> int | None:
    key = locked_run.run.fingerprint_key
    return fingerprints.values(session, [key])[key].cpu_count if key is not None else None
