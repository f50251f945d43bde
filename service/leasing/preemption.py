"""Take a worker from a retune's run at once when a user's study needs that worker, if the operator has chosen this."""

from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.studies.study_state import StudyPurpose
from shardtune.db.queries import events, leases, studies, workers
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.access import quotas
from shardtune.service.lifecycle.expiry import end_lost_attempt
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility
from shardtune.service.workers.reservations import find_reservations

_RESUMED = (EventType.STUDY_RESUMED,)


def preempt_if_needed(context: Context, run_id: str, worker_session: str) -> None:
    """End a run of a study that the service created to measure or check a recommendation again, if a user's study
    needs the worker. The run is repeated later, and the ended attempt does not count as a failed one.
    """
    with context.db.read() as session:
        run, worker = leases.get(session, run_id), workers.by_session(session, worker_session)
        if run is None or worker is None or run.worker_session != worker_session:
            return
        study = studies.get(session, run.study_id)
        if study is None or study.purpose == StudyPurpose.USER or not _is_needed_by_user(context, session, worker, run):
            return
    # Decided on an unlocked read; `end_lost_attempt` checks under the lock that the run is still this session's.
    # A preemption, not a loss: the end counts as nobody's fault and takes no attempt from the run.
    end_lost_attempt(
        context,
        run_id,
        lambda locked_row: _is_leased_to(locked_row, worker_session),
        "a study wants its worker",
        is_preemption=True,
    )


def _is_leased_to(run: RunRow, worker_session: str) -> bool:
    return run.worker_session == worker_session


def _is_needed_by_user(context: Context, session: Session, worker: WorkerRow, run: RunRow) -> bool:
    """Whether a study of a user needs this worker: the worker can run the study, no run of the study executes now or
    is reserved for other workers, its project may still use GPU-seconds today, and the worker was not taken in vain
    for it.
    """
    if worker.is_draining:
        return False
    busy = studies.with_running_runs(session)
    wanting = [
        study
        for study in studies.running(session)
        if study.purpose == StudyPurpose.USER and study.id not in busy and compatibility.can_run(worker, study)
    ]
    # A study that may get no run would take the worker from the retune at each heartbeat: until midnight, or as long as
    # the worker that began its comparison block does something else.
    in_vain_at = _taken_in_vain_at(session, run) if wanting else None
    if in_vain_at is not None:
        wanting = [study for study in wanting if _wants_runs_since(session, study) > in_vain_at]
    reserved = find_reservations(context, session, wanting, worker).by_other_workers
    return any(
        study.id not in reserved
        and not quotas.is_exhausted(session, study.project_id, study.project.quotas, context.now())
        for study in wanting
    )


def _wants_runs_since(session: Session, study: StudyRow) -> datetime:
    """Time since which a running study may get runs: its start, or the last end of a pause, or its last extension if
    that reopened it."""
    resumed = events.newest(session, study.id, _RESUMED, 1)
    return resumed[0].created_at if resumed else study.started_at or study.created_at


def _taken_in_vain_at(session: Session, run: RunRow) -> datetime | None:
    """Time at which the worker was last taken from the retune in vain: it has got no run of a user's study since.
    None if that did not happen.
    """
    # Only its request for work shows that a worker may not have a run: because it must end too soon, its release does
    # not know the run, or its host is busy. Until another study begins, the next request would have the same result.
    worker_session = run.worker_session or ""
    taken_at = leases.newest_preemption(session, run.study_id, worker_session)
    if taken_at is None or leases.has_ended_users_run(session, worker_session, taken_at):
        return None
    return taken_at
