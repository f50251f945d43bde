"""Request runs of trials under the profiler, and read their diagnoses."""

import logging

from sqlalchemy.orm import Session

from shardtune.api_schemas.trials.diagnosis_runs import StoredTrace, TrialDiagnosis
from shardtune.db import traces as stored_traces
from shardtune.db.queries import studies, trials
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow, TrialRow
from shardtune.service.http.errors import Conflict, NotFound
from shardtune.service.http.idempotent_requests import NO_KEY, IdempotencyKey
from shardtune.service.lifecycle import traces
from shardtune.service.process.context import Context
from shardtune.service.studies.create_and_read import get_study

log = logging.getLogger(__name__)


def request_diagnosis(
    context: Context, study_id: str, number: int, idempotency: IdempotencyKey = NO_KEY
) -> TrialDiagnosis:
    """Request one more run of a trial under the profiler; if such a run waits or executes already, no second one is
    added.

    Raises:
        NotFound: no such study or trial.
        Conflict: the study still runs, was deleted, or its trials cannot be traced.
    """
    with idempotency.write(context) as session:
        get_study(context, session, study_id)
        # Locked, so that two requests at once add one run.
        study = studies.lock(session, study_id)
        trial = _must_have_trial(session, study_id, number)
        _check_traceable(study)
        run = traces.request_trace(session, study, trial, context.now())
        log.info("trace asked for", extra={"study": study_id, "trial": number, "run": run.id})
        return idempotency.answer(session, _view(session, study, trial, run), status=202)


def read_diagnosis(context: Context, study_id: str, number: int) -> TrialDiagnosis:
    """Latest diagnosis of a trial, or the state of the run that will produce the diagnosis.

    Raises:
        NotFound: no such study or trial, or no diagnosis was requested.
    """
    with context.db.read() as session:
        study = get_study(context, session, study_id)
        trial = _must_have_trial(session, study_id, number)
        run = trials.newest_trace(session, trial)
        if run is None:
            raise _no_diagnosis(study_id, number)
        return _view(session, study, trial, run)


def raw_trace(context: Context, study_id: str, number: int, rank: int) -> stored_traces.StoredContent:
    """Raw trace of a rank from the trial's last run under the profiler; `trace_download` reads its bytes.

    Raises:
        NotFound: no such study or trial, no diagnosis was requested, or the trace is not stored, or no longer stored.
    """
    with context.db.read() as session:
        get_study(context, session, study_id)
        run = trials.newest_trace(session, _must_have_trial(session, study_id, number))
        if run is None:
            raise _no_diagnosis(study_id, number)
        trace = stored_traces.find(session, run.id, rank)
        if trace is None:
            stored_ranks = (
                ", ".join(str(stored_rank) for stored_rank, _ in stored_traces.stored(session, run.id)) or "none"
            )
            raise NotFound(
                "unknown_trace",
                f"no trace of rank {rank} is stored of trial {number} of study {study_id} (stored ranks: {stored_ranks}); "
                "a trace that was too large, is too old or made room for newer ones may still be on the worker",
            )
        return trace


def newest_diagnosis(session: Session, study: StudyRow, number: int) -> TrialDiagnosis | None:
    """Latest diagnosis of a trial, read in the caller's transaction; None if no diagnosis was requested.

    Raises:
        NotFound: no such trial.
    """
    trial = _must_have_trial(session, study.id, number)
    run = trials.newest_trace(session, trial)
    return None if run is None else _view(session, study, trial, run)


def _no_diagnosis(study_id: str, number: int) -> NotFound:
    return NotFound(
        "unknown_diagnosis",
        f"trial {number} of study {study_id} was never run under the profiler; "
        f"POST /v1/studies/{study_id}/trials/{number}:diagnose",
    )


def _must_have_trial(session: Session, study_id: str, number: int) -> TrialRow:
    trial = trials.by_number(session, study_id, number)
    if trial is None:
        raise NotFound("unknown_trial", f"there is no trial {number} in study {study_id}")
    return trial


def _check_traceable(study: StudyRow) -> None:
    if study.deleted_at is not None:
        raise Conflict("study_deleted", f"study {study.id} was deleted; POST /v1/studies/{study.id}:undelete first")
    # A trace beside the study's own runs would disturb what they measure.
    if study.state.is_open:
        raise Conflict(
            "study_running",
            f"study {study.id} is {study.state.value}; a run under the profiler would disturb its measurements; request it when the study has ended",
        )
    reason = traces.why_not_traceable(study)
    if reason is not None:
        raise Conflict("trial_untraceable", reason)


def _view(session: Session, study: StudyRow, trial: TrialRow, run: RunRow) -> TrialDiagnosis:
    last_attempt = run.attempts[-1] if run.attempts else None
    return TrialDiagnosis(
        study_id=study.id,
        trial_number=trial.number,
        run_id=run.id,
        state=run.state,
        asked_at=run.created_at,
        finished_at=run.finished_at,
        worker=None if last_attempt is None else last_attempt.worker.name,
        gpu_seconds=sum(attempt.gpu_seconds or 0.0 for attempt in run.attempts),
        failure=run.failure,
        diagnosis=run.diagnosis,
        traces=tuple(StoredTrace(rank=rank, bytes=size) for rank, size in stored_traces.stored(session, run.id)),
    )
