"""Take a worker from a retune's run at once when a user's study needs that worker, if the operator has chosen this."""

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study_state import StudyPurpose
from shardtune.db.queries import leases, studies, workers
from shardtune.db.tables.trials import RunRow
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.access import quotas
from shardtune.service.lifecycle.expiry import end_lost_attempt
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility
from shardtune.service.workers.reservations import find_reservations


def preempt_if_needed(context: Context, run_id: str, worker_session: str) -> None:
    """End a run of a study that the service created to measure or check a recommendation again, if a user's study
    needs the worker. The run is repeated later, and the ended attempt does not count as a failed one.
    """
    with context.db.read() as session:
        run, worker = leases.get(session, run_id), workers.by_session(session, worker_session)
        if run is None or worker is None or run.worker_session != worker_session:
            return
        study = studies.get(session, run.study_id)
        if study is None or study.purpose == StudyPurpose.USER or not _is_needed_by_user(context, session, worker):
            return
    # Decided on an unlocked read; `end_lost_attempt` checks under the lock that the run is still this session's.
    # A release, not a loss: the end counts as nobody's fault and takes no attempt from the run.
    end_lost_attempt(
        context,
        run_id,
        lambda locked_row: _is_leased_to(locked_row, worker_session),
        "a study wants its worker",
        is_release=True,
    )


def _is_leased_to(run: RunRow, worker_session: str) -> bool:
    return run.worker_session == worker_session


def _is_needed_by_user(context: Context, session: Session, worker: WorkerRow) -> bool:
    """Whether a study of a user needs this worker: the worker can run the study, no run of the study executes now or
    is reserved for other workers, and its project may still use GPU-seconds today.
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
    reserved = find_reservations(context, session, wanting, worker).by_other_workers
    return any(
        study.id not in reserved
        and not quotas.is_exhausted(session, study.project_id, study.project.quotas, context.now())
        for study in wanting
    )
