"""Request runs under the profiler for trials of ended studies, and explain their traces."""

from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.queries import leases, studies, trials, workers
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow, TrialRow
from shardtune.service.process.context import Context
from shardtune.tuner.diagnosis import explain
from shardtune.tuner.diagnosis.findings import traced_trial


def why_not_traceable(study: StudyRow) -> str | None:
    """Reason why no trial of a study can be run under the profiler; None if trials can be."""
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
        return f"study {study.id} ended before its model was summarized"
    return None


def request_trace(session: Session, study: StudyRow, trial: TrialRow, now: datetime) -> RunRow:
    """Request a run of a trial under the profiler. If such a run of the trial has not ended yet, return it; else add
    a new one. The caller has locked the study, which has ended.
    """
    # Idempotent while a trace is open: two people who ask at once get one run.
    open_trace = trials.newest_trace(session, trial)
    if open_trace is not None and open_trace.state.is_open:
        return open_trace
    run = leases.add_run(session, study, trial, RunPurpose.TRACE, now)
    study.version += 1
    session.flush()
    return run


def request_traces_after_verdict(session: Session, study: StudyRow, now: datetime) -> None:
    """Request runs under the profiler for a study's winner and baseline, if the study's budget includes them."""
    result = study.result
    if (
        not study.spec.budget.profile
        or study.state is not StudyState.COMPLETE
        or result is None
        or why_not_traceable(study)
    ):
        return
    results = (result.best, result.baseline)
    for number in dict.fromkeys(trial_result.trial_number for trial_result in results if trial_result is not None):
        trial = trials.by_number(session, study.id, number)
        assert trial is not None
        request_trace(session, study, trial, now)


def explain_diagnosis(context: Context, run_id: str, diagnosis: Diagnosis) -> Diagnosis:
    """Complete a diagnosis with data about its trial: the remedies that the study's search space and its memory gate
    (rejects configurations predicted not to fit) allow, and the predicted parts of a step.
    """
    with context.db.read() as session:
        run = leases.get(session, run_id)
        study = studies.get(session, run.study_id) if run is not None else None
        # A run may have been deleted, or its study may lack a summary; the worker's own diagnosis is stored as it is.
        if run is None or run.trial is None or study is None or study.model_summary is None:
            return diagnosis
        worker = workers.by_session(session, run.worker_session or "")
        config, spec, cluster, model_summary = run.trial.config, study.spec, study.cluster, study.model_summary
        hardware = worker.offer.measured if worker is not None else None
    return explain.explain(diagnosis, traced_trial.of_spec(spec, cluster, model_summary, config, hardware), hardware)
