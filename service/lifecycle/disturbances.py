"""Whether a run that ended well counts: its machine may have been disturbed, and it may be repeated for that."""

from sqlalchemy.orm import Session

from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import AttemptEnd, TrialState
from shardtune.db.queries import fingerprints, leases
from shardtune.service.lifecycle.locked_run import HeldRun
from shardtune.tuner.verdict import disturbance


def judge(session: Session, held: HeldRun, measured: Measurement) -> Measurement | Failure:
    """The measurement as it counts, or why it is to be repeated. The caller holds the run."""
    study, share = held.study, held.study.spec.budget.repeat_disturbed
    reason = disturbance.reason(measured, study.cluster, lambda: _cores(session, held)) if share else None
    if reason is None:
        return measured
    of_run = held.ends.count(AttemptEnd.DISTURBED)
    of_study = leases.attempts_that_ended(session, study.id, AttemptEnd.DISTURBED)
    counted = sum(run.state is TrialState.COMPLETE for trial in held.trials for run in trial.runs)
    if disturbance.may_repeat(share, of_run, of_study, counted):
        return Failure(kind=FailureKind.DISTURBED, message=reason, conditions=measured.conditions)
    return measured.model_copy(update={"disturbed": reason})


def _cores(session: Session, held: HeldRun) -> int | None:
    key = held.run.fingerprint_key
    return fingerprints.values(session, [key])[key].cpu_count if key is not None else None
