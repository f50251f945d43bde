"""Runs under the profiler of trials of ended studies: which may be asked for, and what their traces point to."""

from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study import StudyState
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.queries import leases, studies, trials, workers
from shardtune.db.tables.studies import RunRow, StudyRow, TrialRow
from shardtune.service.process.context import Context
from shardtune.tuner.diagnosis import explain
from shardtune.tuner.diagnosis.findings import traced_trial


def why_not(study: StudyRow) -> str | None:
    """Why nothing of a study can be traced; None where it can."""
    if study.spec.model.script is not None:
        return (
            f"model.script ({study.spec.model.script}) trains by itself; record traces in it: shardtune explain --trace"
        )
    if study.cluster.nodes > 1:
        return (
            f"cluster.nodes ({study.cluster.nodes}) must be 1, as the traces of several hosts lie apart; record them in your "
            "job: shardtune explain --trace"
        )
    if study.model_summary is None:
        return f"study {study.id} ended before its model was profiled"
    return None


def ask(session: Session, study: StudyRow, trial: TrialRow, now: datetime) -> RunRow:
    """A trace of a trial: the one that is open, else a new one. The caller holds the study, which has ended."""
    known = trials.newest_trace(session, trial)
    if known is not None and known.state.is_open:
        return known
    run = leases.add_run(session, study, trial, RunPurpose.TRACE, now)
    study.version += 1
    session.flush()
    return run


def ask_after_verdict(session: Session, study: StudyRow, now: datetime) -> None:
    """Of the winner and of the baseline that it was held against, where the study's budget says so."""
    result = study.result
    if not study.spec.budget.profile or study.state is not StudyState.COMPLETE or result is None or why_not(study):
        return
    told = (result.best, result.baseline)
    for number in dict.fromkeys(one.trial_number for one in told if one is not None):
        trial = trials.by_number(session, study.id, number)
        assert trial is not None
        ask(session, study, trial, now)


def explained(context: Context, run_id: str, found: Diagnosis) -> Diagnosis:
    """With what we know of the trial: remedies that the study's space and the memory gate admit, and the predicted parts."""
    with context.db.read() as session:
        run = leases.get(session, run_id)
        study = studies.get(session, run.study_id) if run is not None else None
        if run is None or run.trial is None or study is None or study.model_summary is None:
            return found
        measured = workers.by_session(session, run.worker_session or "")
        config, spec, cluster, model_summary = run.trial.config, study.spec, study.cluster, study.model_summary
        hardware = measured.offer.measured if measured is not None else None
    return explain.explained(found, traced_trial.of_spec(spec, cluster, model_summary, config, hardware), hardware)
