"""Give work to a worker that asks: its live lease, else a run of the first study that has one for it.

How one study gives a run stands in service.leasing.grant; what becomes of the lease in service.leasing.renew_and_report.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import assert_never

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study import StudyPhase, StudyState
from shardtune.api_schemas.studies.system_studies import SystemStudyKind
from shardtune.api_schemas.trials.leases import Lease, LeaseRequest
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db import hosts
from shardtune.db.queries import studies
from shardtune.db.queries.studies import OpenStudy
from shardtune.db.tables.studies import WorkerRow
from shardtune.service.access import quotas
from shardtune.service.leasing.claim_results import Asking, Busy, Granted, HostBusy, Reserved
from shardtune.service.leasing.grant import TOUCH, lease_run, renewed, take_waiting
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility
from shardtune.service.workers.registry import check_protocol, of_session, with_lease
from shardtune.service.workers.reservations import reservations

log = logging.getLogger(__name__)

_AT_ONCE_S, _PATIENCE_S = 0.001, 2.0
"""For a study's turn: replicas rather ask in different studies than wait for each other. Workers alike wait meanwhile, and
what the other replica leaves is seen by the study's version."""


@dataclass(frozen=True)
class Idle:
    """A worker that holds nothing and gets nothing now."""

    worker: WorkerRow
    kind: str
    """Equal for workers that can run the same: their hardware, software and project, and whether they are drained."""
    reserved: frozenset[str] = frozenset()
    """Ids of workers for which something waits that is theirs alone; what this one was told is no answer to them."""


@dataclass(frozen=True)
class _Offer:
    """What there may be for a worker."""

    users: Sequence[OpenStudy]
    """Of people who wait."""
    others: Sequence[OpenStudy]
    rejected: Sequence[str]
    """Ids of studies whose measurements would not compare with the worker's."""
    reserved: frozenset[str]
    """Ids of workers for which something waits that is theirs alone."""


def check_in(context: Context, request: LeaseRequest) -> Lease | Idle:
    """Note that a worker asks; its live lease, if it holds one."""
    check_protocol(request.protocol_version)
    with context.db.read() as session:
        worker, held = with_lease(context, session, request.session)
    if held is not None or context.now() - worker.seen_at >= TOUCH:
        with context.db.write() as session:
            worker, held = with_lease(context, session, request.session)
            lease = renewed(context, session, held) if held is not None else None
            worker.seen_at = context.now()
        if lease is not None:
            return lease
    return _idle(worker, request)


def claim(context: Context, request: LeaseRequest, known: WorkerRow | None = None) -> Lease | Idle:
    """A run that waits, else a new trial, of the first study that has one for this worker; users' studies come first.

    `known`: the worker as it was just now, where the caller has looked.
    """
    with context.db.read() as session:
        worker = known or of_session(context, session, request.session)
        idle = _idle(worker, request)
        if worker.is_draining:
            return idle
        offer = _offer(context, session, worker, studies.open_ones(session))
    for study_id in offer.rejected:
        _note_rejection(context, study_id, request.session)
    reserved = offer.reserved
    try:
        for group in (offer.users, offer.others):
            found = _first_with_work(context, group, Asking(request.session, request.ends_in_s))
            match found:
                case Granted(lease):
                    return lease
                case HostBusy():
                    return replace(idle, reserved=frozenset(reserved - {idle.worker.id}))
                case Reserved(worker_ids):
                    reserved |= worker_ids
                case _:
                    assert_never(found)
    except IntegrityError as error:
        # Two requests of one session claimed in two studies; the index let one through, and that is the answer.
        log.warning("claim collided: %s", error.orig, extra={"session": request.session})
        with context.db.write() as session:
            _, held = with_lease(context, session, request.session)
            return (renewed(context, session, held) if held is not None else None) or idle
    if worker.waits is not None:
        with context.db.write() as session:
            hosts.stop_waiting(session, request.session)
    return replace(idle, reserved=frozenset(reserved - {idle.worker.id}))


def claim_begun(context: Context, request: LeaseRequest, worker: WorkerRow, study_id: str) -> Lease | None:
    """The run that waits in a block which the worker began, where nothing comes before it; without a look at other studies."""
    if worker.is_draining:
        return None
    with context.db.read() as session:
        offer = _offer(context, session, worker, studies.open_ones(session, study_id))
    for found in offer.users:
        # Before what needs fewer hosts than the worker has comes what needs them all.
        if not found.has_waiting or found.study.cluster.nodes < worker.offer.cluster.nodes:
            continue
        with suppress(IntegrityError):
            given = take_waiting(context, found, Asking(request.session, request.ends_in_s))
            return given.lease if isinstance(given, Granted) else None
    return None


def _offer(context: Context, session: Session, worker: WorkerRow, running: Sequence[OpenStudy]) -> _Offer:
    """The running studies, as far as they concern a worker."""
    spent = _spent_projects(context, session, running)
    running = [found for found in running if found.study.project_id not in spent]
    # Idle ones first: what a study is about is read and checked only where there may be work.
    asked = [
        found
        for found in running
        if not context.planner_cache.is_idle(found.study.id, found.study.version) and not _waits_for_an_end(found)
    ]
    context.planner_cache.give_specs(session, [found.study for found in asked])
    served = [found for found in asked if compatibility.may_run(worker, found.study)]
    kept, own = reservations(context, session, [found.study for found in served if found.has_waiting], worker)
    served = [found for found in served if found.study.id not in kept]
    # What needs all hosts first: on the others' account they would wait meanwhile. Then what nobody else may go on with.
    nodes = worker.offer.cluster.nodes
    served.sort(key=lambda found: (found.study.cluster.nodes < nodes, found.study.id not in own))
    wanted = (found.study.system_study.worker_id for found in asked if found.study.system_study is not None)
    return _Offer(
        users=[found for found in served if not found.is_background],
        others=[found for found in served if found.is_background],
        rejected=[found.study.id for found in running if compatibility.fingerprint_differs(worker, found.study)],
        reserved=frozenset(worker_id for worker_id in wanted if worker_id is not None).union(*kept.values()),
    )


def _first_with_work(context: Context, served: Sequence[OpenStudy], asking: Asking) -> Granted | Reserved | HostBusy:
    """A run of the first of these studies that has one, else who alone may take what waits."""
    reserved = frozenset[str]()
    looks = [(found, found.has_waiting, _AT_ONCE_S) for found in served]
    for found, has_waiting, patience_s in looks:
        given = lease_run(context, found, asking, has_waiting=has_waiting, patience_s=patience_s)
        match given:
            case Granted() | HostBusy():
                return given
            case Reserved():
                reserved |= given.worker_ids
            case Busy() if patience_s == _AT_ONCE_S:
                # Looked at again after all others; what waited there was looked at now.
                looks.append((found, False, _PATIENCE_S))
            case Busy():
                pass
            case _:
                assert_never(given)
    return Reserved(reserved)


def _waits_for_an_end(found: OpenStudy) -> bool:
    """Whether a look at the whole study would find nothing: its next step follows from the end of what runs now.

    Only a search goes on beside its running trials; and a run that waits may be taken.
    """
    made = found.study.system_study
    is_searching = found.study.phase is StudyPhase.SEARCH and (made is None or made.kind == SystemStudyKind.SEARCH)
    return found.open_states == {TrialState.RUNNING} and not is_searching


def _idle(worker: WorkerRow, request: LeaseRequest) -> Idle:
    hardware = worker.offer.cluster.content_key()
    kinds = worker.offer.task_kinds
    # What is too long for one that must end soon may be another's.
    # And what is free of its host is no answer to workers alike elsewhere.
    ends = "" if request.ends_in_s is None and worker.host_id is None else worker.id
    return Idle(worker, f"{hardware} {worker.fingerprint_key} {worker.is_draining} {worker.project_id} {kinds} {ends}")


def _spent_projects(context: Context, session: Session, running: Sequence[OpenStudy]) -> set[str]:
    """Those of the projects that get no run today: their GPU-seconds are used up."""
    rows = {found.study.project_id: found.study.project for found in running}
    return {row.id for row in rows.values() if quotas.is_exhausted(session, row.id, row.quotas, context.now())}


def _note_rejection(context: Context, study_id: str, worker_session: str) -> None:
    """Say on the study why a worker that has the hardware gets none of its runs."""
    with context.db.read() as session:
        study, worker = studies.get(session, study_id), of_session(context, session, worker_session)
        assert study is not None
        reason = compatibility.rejection(worker, study)
        if study.reason is not None:
            return
    with context.db.write() as session:
        study = studies.lock(session, study_id)
        if study.state is StudyState.RUNNING and study.reason is None:
            study.reason = reason
            log.warning(reason, extra={"study": study_id})
