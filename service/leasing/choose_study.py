"""Give work to a worker that asks: its live lease, else a run of the first study that has one for it.

How one study gives a run stands in service.leasing.lease_run; what becomes of the lease in service.leasing.renew_and_report.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shardtune.api_schemas.leases import Lease, LeaseRequest
from shardtune.api_schemas.studies import StudyPhase, StudyPurpose, StudyState
from shardtune.api_schemas.system_studies import SystemStudyKind
from shardtune.api_schemas.trials import TrialState
from shardtune.db.queries import keys, leases, studies
from shardtune.db.tables.studies import StudyRow, WorkerRow
from shardtune.service.access import quotas
from shardtune.service.leasing.answers import Busy, Granted, Reserved
from shardtune.service.leasing.lease_run import lease_run, live_lease
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility
from shardtune.service.workers.registry import check_protocol, of_session, reservations

log = logging.getLogger(__name__)

_TOUCH_S = 15.0
"""A waiting worker's last-seen time is written this often."""
_AT_ONCE_S, _PATIENCE_S = 0.001, 10.0
"""For a study's turn: replicas rather ask in different studies than wait for each other."""


@dataclass(frozen=True)
class Idle:
    """A worker that holds nothing and gets nothing now."""

    worker_id: str
    kind: str
    """Equal for workers that can run the same: their hardware, software and project, and whether they are drained."""
    reserved: frozenset[str] = frozenset()
    """Ids of workers for which something waits that is theirs alone; what this one was told is no answer to them."""


def check_in(context: Context, request: LeaseRequest) -> Lease | Idle:
    """Note that a worker asks; its live lease, if it holds one."""
    check_protocol(request.protocol_version)
    with context.db.read() as session:
        worker = of_session(context, session, request.session)
        held = leases.held_by(session, request.session) is not None
        due = (context.now() - worker.seen_at).total_seconds() >= _TOUCH_S
        idle = _idle(worker)
    if held or due:
        with context.db.write() as session:
            lease = live_lease(context, session, request.session)
            of_session(context, session, request.session).seen_at = context.now()
        if lease is not None:
            return lease
    return idle


def claim(context: Context, worker_session: str) -> Lease | Idle:
    """A run that waits, else a new trial, of the first study that has one for this worker; users' studies come first."""
    with context.db.read() as session:
        worker = of_session(context, session, worker_session)
        idle = _idle(worker)
        if worker.is_draining:
            return idle
        running = studies.running(session)
        spent = _spent_projects(context, session, {study.project_id for study in running})
        running = [study for study in running if study.project_id not in spent]
        # Idle ones first: what a study is about is read and checked only where there may be work.
        asked = [study for study in running if not context.planner_cache.is_idle(study.id, study.version)]
        opened = leases.open_states(session, [study.id for study in asked])
        asked = [study for study in asked if not _waits_for_an_end(study, opened.get(study.id, set()))]
        studies.read_specs(session, asked)
        served = [study for study in asked if compatibility.may_run(worker, study)]
        waiting = {study_id for study_id, states in opened.items() if TrialState.WAITING in states}
        kept = reservations(context, session, [study for study in served if study.id in waiting], worker)
        served = [study for study in served if study.id not in kept]
        users = [study for study in served if study.purpose == StudyPurpose.USER]
        others = [study for study in served if study.purpose != StudyPurpose.USER]
        refused = [study.id for study in running if compatibility.fingerprint_differs(worker, study)]
        wanted = (study.system_study.worker_id for study in asked if study.system_study is not None)
        reserved = {worker_id for worker_id in wanted if worker_id is not None}.union(*kept.values())
    for study_id in refused:
        _note_refusal(context, study_id, worker_session)
    try:
        for group in (users, others):
            found = _first_with_work(context, group, waiting, worker_session)
            match found:
                case Granted(lease):
                    return lease
                case Reserved(worker_ids):
                    reserved |= worker_ids
                case _:
                    assert_never(found)
    except IntegrityError as error:
        # Two requests of one session claimed in two studies; the index let one through, and that is the answer.
        log.warning("claim collided: %s", error.orig, extra={"session": worker_session})
        with context.db.write() as session:
            return live_lease(context, session, worker_session) or idle
    return replace(idle, reserved=frozenset(reserved - {idle.worker_id}))


def _first_with_work(
    context: Context, served: Sequence[StudyRow], waiting: Collection[str], worker_session: str
) -> Granted | Reserved:
    """A run of the first of these studies that has one, else who alone may take what waits; in `waiting` a run does."""
    reserved = frozenset[str]()
    looks = [(study, study.id in waiting, _AT_ONCE_S) for study in served]
    for study, has_waiting, patience_s in looks:
        is_background = study.purpose != StudyPurpose.USER
        found = lease_run(
            context,
            study.id,
            worker_session,
            is_background=is_background,
            has_waiting=has_waiting,
            patience_s=patience_s,
        )
        match found:
            case Granted():
                return found
            case Reserved():
                reserved |= found.worker_ids
            case Busy() if patience_s == _AT_ONCE_S:
                # Looked at again after all others; what waited there was looked at now.
                looks.append((study, False, _PATIENCE_S))
            case Busy():
                pass
            case _:
                assert_never(found)
    return Reserved(reserved)


def _waits_for_an_end(study: StudyRow, opened: set[TrialState]) -> bool:
    """Whether a look at the whole study would find nothing: its next step follows from the end of what runs now.

    Only a search goes on beside its running trials; and a run that waits may be taken.
    """
    is_searching = study.phase is StudyPhase.SEARCH and (
        study.system_study is None or study.system_study.kind == SystemStudyKind.SEARCH
    )
    return opened == {TrialState.RUNNING} and not is_searching


def _idle(worker: WorkerRow) -> Idle:
    hardware = worker.inventory.cluster.content_key()
    kinds = worker.inventory.task_kinds
    return Idle(worker.id, f"{hardware} {worker.fingerprint_key} {worker.is_draining} {worker.project_id} {kinds}")


def _spent_projects(context: Context, session: Session, project_ids: set[str]) -> set[str]:
    """Those of the projects that get no run today: their GPU-seconds are used up."""
    rows = [row for row in (keys.project(session, project_id) for project_id in project_ids) if row is not None]
    return {row.id for row in rows if quotas.is_exhausted(session, row.id, row.quotas, context.now())}


def _note_refusal(context: Context, study_id: str, worker_session: str) -> None:
    """Say on the study why a worker that has the hardware gets none of its runs."""
    with context.db.read() as session:
        study, worker = studies.get(session, study_id), of_session(context, session, worker_session)
        assert study is not None
        reason = compatibility.refusal(worker, study)
        if study.reason is not None:
            return
    with context.db.write() as session:
        study = studies.lock(session, study_id)
        if study.state is StudyState.RUNNING and study.reason is None:
            study.reason = reason
            log.warning(reason, extra={"study": study_id})
