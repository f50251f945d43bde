"""Answer a worker's request for work: renew the worker's live lease, or lease it a run of the first study that has work
for it.

`service.leasing.grant` leases a run of one study; `service.leasing.renew_and_report` handles the lease afterwards.
"""

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import assert_never

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.studies.system_studies import SystemStudyKind
from shardtune.api_schemas.trials.leases import Lease, LeaseRequest
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db import hosts
from shardtune.db.queries import studies
from shardtune.db.queries.studies import OpenStudy
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.access import quotas
from shardtune.service.leasing import unread_leases
from shardtune.service.leasing.claim_results import Granted, HostBusy, NoRun, StudyBusy, WorkRequest
from shardtune.service.leasing.grant import lease_run, lease_waiting
from shardtune.service.leasing.start_run import SEEN_WRITE_INTERVAL, renew_lease
from shardtune.service.lifecycle import advance
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility
from shardtune.service.workers.protocol_versions import check_protocol
from shardtune.service.workers.registry import with_lease, worker_of_session
from shardtune.service.workers.reservations import find_reservations

log = logging.getLogger(__name__)

# Replicas that ask in different studies get further than replicas that wait for each other, so the first pass hardly
# waits. The second pass waits: the other replica's result raises the study's version, which wakes the workers that
# wait.
_AT_ONCE_S, _PATIENCE_S = 0.001, 2.0
"""Maximum seconds of waiting for a study's ask lock, with which only one process plans the study at a time. The first
value applies in the first pass over the studies, the second one in the second pass.
"""


@dataclass(frozen=True)
class Idle:
    """Result of a request for work: the worker has no lease, and there is no work for it at the moment."""

    worker: WorkerRow
    worker_kind: str
    """Key that is equal for workers that can run the same studies: their hardware, software and project are equal,
    and all or none of them accept new runs.
    """
    reserved_worker_ids: frozenset[str] = frozenset()
    """Ids of workers for which a run is reserved. The answer "no work" that this worker gets does not apply to them."""


@dataclass(frozen=True)
class _StudyOffer:
    """Studies that may have work for one worker, sorted by who created them."""

    users: Sequence[OpenStudy]
    """Studies created by users. They come before studies that the service created, because users wait for the result.
    """
    background: Sequence[OpenStudy]
    rejected: Sequence[str]
    """Ids of studies that this worker must not run, because its measurements would not be comparable with those made
    so far.
    """
    reserved: frozenset[str]
    """Ids of workers for which a run of one of these studies is reserved."""
    without_quota: Sequence[tuple[str, int]]
    """Ids and versions of studies in the final comparison whose project has used up its GPU-seconds of the day. One whose answer is
    known completes without its optional runs, such as the sustained run (the long run after the verdict)."""


def record_request(context: Context, request: LeaseRequest) -> Lease | Idle:
    """Record that a worker requests work; returns the worker's live lease if there is one."""
    check_protocol(request.protocol_version)
    # Read first, write only if needed: an idle worker asks every few seconds, and a write transaction for each question
    # would make the studies' writers wait on SQLite.
    with context.db.read() as session:
        worker, leased_run = with_lease(context, session, request.session)
    # A replica of an older release registered it, or the schema was upgraded while it ran.
    has_other_version = worker.protocol_version != request.protocol_version
    if leased_run is not None or has_other_version or context.now() - worker.seen_at >= SEEN_WRITE_INTERVAL:
        with context.db.write() as session:
            worker, leased_run = with_lease(context, session, request.session)
            lease = renew_lease(context, session, leased_run) if leased_run is not None else None
            worker.seen_at, worker.protocol_version = context.now(), request.protocol_version
        if lease is not None:
            return lease
        if leased_run is not None and unread_leases.take_back_unread(context, leased_run):
            with context.db.read() as session:
                worker = worker_of_session(context, session, request.session)
    return _idle(worker, request)


def claim(context: Context, request: LeaseRequest, worker_row: WorkerRow | None = None) -> Lease | Idle:
    """Lease a worker a run of the first study that has work, either a waiting run or a new trial. Studies of users
    come before those of the service.

    `worker_row`: the worker's row, if the caller has just read it.
    """
    with context.db.read() as session:
        worker = worker_row or worker_of_session(context, session, request.session)
        idle = _idle(worker, request)
        if worker.is_draining:
            return idle
        offer = _select_studies(context, session, worker, studies.studies_with_work(session))
    for study_id in offer.rejected:
        _note_rejection(context, study_id, request.session)
    _complete_without_quota(context, offer.without_quota)
    reserved = offer.reserved
    try:
        for group in (offer.users, offer.background):
            result = _first_with_work(context, group, WorkRequest.of(request))
            match result:
                case Granted(lease):
                    return lease
                case HostBusy():
                    return replace(idle, reserved_worker_ids=frozenset(reserved - {idle.worker.id}))
                case NoRun(worker_ids):
                    reserved |= worker_ids
                case _:
                    assert_never(result)
    except IntegrityError as error:
        # Two requests of one session claimed in two studies; the index let one through, and that is the answer.
        log.warning("claim collided: %s", error.orig, extra={"session": request.session})
        with context.db.write() as session:
            _, leased_run = with_lease(context, session, request.session)
            return (renew_lease(context, session, leased_run) if leased_run is not None else None) or idle
    # The worker asked and nothing waits for its host any more: without this it would keep its place in the queue and
    # hold up the others on the host.
    if worker.host_wait is not None:
        with context.db.write() as session:
            hosts.clear_host_wait(session, request.session)
    return replace(idle, reserved_worker_ids=frozenset(reserved - {idle.worker.id}))


def claim_next_in_block(context: Context, request: LeaseRequest, worker: WorkerRow, study_id: str) -> Lease | None:
    """Lease the next run of a comparison block that the worker has begun, unless other work has priority. The runs of
    a block must execute directly after each other on the same devices.
    """
    if worker.is_draining:
        return None
    with context.db.read() as session:
        offer = _select_studies(context, session, worker, studies.studies_with_work(session, study_id))
    for open_study in offer.users:
        # Before what needs fewer hosts than the worker has comes what needs them all.
        if not open_study.has_waiting or open_study.study.cluster.nodes < worker.offer.cluster.nodes:
            continue
        # The unique index per session rejects a second run for a session that claimed elsewhere meanwhile; the general
        # claim then finds that lease.
        with suppress(IntegrityError):
            result = lease_waiting(context, open_study, WorkRequest.of(request))
            return result.lease if isinstance(result, Granted) else None
    return None


def _select_studies(
    context: Context, session: Session, worker: WorkerRow, open_studies: Sequence[OpenStudy]
) -> _StudyOffer:
    """Select the running studies that may have work for a worker, in order of priority. The result also names the
    studies that reject this worker, and the workers for which runs are reserved.
    """
    spent = _spent_projects(context, session, open_studies)
    without_quota = [
        (item.study.id, item.study.version)
        for item in open_studies
        if _may_complete_without_quota(item, spent)
        and not context.planner_cache.is_idle(item.study.id, item.study.version)
    ]
    open_studies = [open_study for open_study in open_studies if open_study.study.project_id not in spent]
    # Filter by the cached idle state before reading specs: a spec is large JSON, and most studies have nothing to give
    # while their workers are busy.
    possible_studies = [
        open_study
        for open_study in open_studies
        if not context.planner_cache.is_idle(open_study.study.id, open_study.study.version)
        and not _is_blocked_by_running_runs(open_study)
    ]
    context.planner_cache.fill_specs(session, [open_study.study for open_study in possible_studies])
    runnable = [open_study for open_study in possible_studies if compatibility.can_run(worker, open_study.study)]
    reserved_for_others, begun_by_worker = find_reservations(
        context, session, [open_study.study for open_study in runnable if open_study.has_waiting], worker
    )
    runnable = [open_study for open_study in runnable if open_study.study.id not in reserved_for_others]
    # Studies that need all hosts of a gang come first: a smaller study would leave some of them idle meanwhile. Next
    # come
    # studies with a block that this worker began, since no other worker may continue it.
    nodes = worker.offer.cluster.nodes
    runnable.sort(
        key=lambda open_study: (open_study.study.cluster.nodes < nodes, open_study.study.id not in begun_by_worker)
    )
    pinned_workers = (
        open_study.study.system_study.worker_id
        for open_study in possible_studies
        if open_study.study.system_study is not None
    )
    return _StudyOffer(
        users=[open_study for open_study in runnable if not open_study.is_background],
        background=[open_study for open_study in runnable if open_study.is_background],
        rejected=[
            *(item.study.id for item in open_studies if compatibility.fingerprint_differs(worker, item.study)),
            *(item.study.id for item in possible_studies if compatibility.first_run_obstacle(worker, item.study)),
        ],
        reserved=frozenset(worker_id for worker_id in pinned_workers if worker_id is not None).union(
            *reserved_for_others.values()
        ),
        without_quota=without_quota,
    )


def _first_with_work(
    context: Context, open_studies: Sequence[OpenStudy], asking: WorkRequest
) -> Granted | NoRun | HostBusy:
    """Lease a worker a run of the first study that has one. If none has, return the ids of the workers for which runs
    are reserved.
    """
    reserved = frozenset[str]()
    # The list grows while it is walked: a study that another process was asking comes up again at the end.
    attempts = [(open_study, open_study.has_waiting, _AT_ONCE_S) for open_study in open_studies]
    for open_study, has_waiting, patience_s in attempts:
        result = lease_run(context, open_study, asking, has_waiting=has_waiting, patience_s=patience_s)
        match result:
            case Granted() | HostBusy():
                return result
            case NoRun():
                reserved |= result.reserved_worker_ids
            case StudyBusy() if patience_s == _AT_ONCE_S:
                # Try again after all others. Its waiting runs were checked just now, so only planning is left.
                attempts.append((open_study, False, _PATIENCE_S))
            case StudyBusy():
                pass
            case _:
                assert_never(result)
    return NoRun(reserved)


def _is_blocked_by_running_runs(open_study: OpenStudy) -> bool:
    """Whether a study can get no new run until one of the runs that execute now ends.

    Only during its search does a study get new runs while others execute; a run that waits already may be leased at
    any time.
    """
    system_study = open_study.study.system_study
    is_searching = open_study.study.phase is StudyPhase.SEARCH and (
        system_study is None or system_study.kind == SystemStudyKind.SEARCH
    )
    return open_study.open_states == {TrialState.RUNNING} and not is_searching


def _idle(worker: WorkerRow, request: LeaseRequest) -> Idle:
    hardware = worker.offer.cluster.content_key()
    kinds = worker.offer.task_kinds
    # A run too long for a worker that must end soon may suit another of the same hardware.
    # On a shared host the answer depends on the host's other workers, so it holds for this worker alone.
    ends = "" if request.ends_in_s is None and worker.host_id is None else worker.id
    # A lease may say what only newer versions of the protocol can express.
    release = f"{kinds} {request.protocol_version}"
    packages = f"{worker.offer.adapters} {worker.offer.optimizers} {worker.offer.float8}"
    return Idle(
        worker,
        f"{hardware} {worker.fingerprint_key} {worker.is_draining} {worker.project_id} {release} {packages} {ends}",
    )


def _spent_projects(context: Context, session: Session, open_studies: Sequence[OpenStudy]) -> set[str]:
    """Ids of those projects that have used up their GPU-seconds of the day."""
    projects = {open_study.study.project_id: open_study.study.project for open_study in open_studies}
    return {row.id for row in projects.values() if quotas.is_exhausted(session, row.id, row.quotas, context.now())}


def _may_complete_without_quota(open_study: OpenStudy, spent: Collection[str]) -> bool:
    """Whether a study compares its finalists and gets no run until the next day. `spent`: ids of the projects that have
    used up their GPU-seconds of the day."""
    is_comparing = open_study.study.phase is StudyPhase.FINAL_COMPARISON
    return is_comparing and open_study.study.project_id in spent and TrialState.RUNNING not in open_study.open_states


def _complete_without_quota(context: Context, without_quota: Sequence[tuple[str, int]]) -> None:
    for study_id, version in without_quota:
        if not advance.advance(context, study_id):
            # Until the quota is renewed, each request of a worker would plan the study again.
            context.planner_cache.note_idle(study_id, version)


def _note_rejection(context: Context, study_id: str, worker_session: str) -> None:
    """Store in the study's reason why a worker with suitable hardware gets none of the study's runs."""
    with context.db.read() as session:
        study, worker = studies.get(session, study_id), worker_of_session(context, session, worker_session)
        assert study is not None
        # It may have been measured since it was selected.
        if not compatibility.is_rejected(worker, study):
            return
        reason = compatibility.rejection_reason(worker, study)
        if not compatibility.may_explain_wait(study, reason):
            return
    with context.db.write() as session:
        study = studies.lock(session, study_id)
        if study.state is StudyState.RUNNING and compatibility.may_explain_wait(study, reason):
            study.explain(reason)
            log.warning(reason.text, extra={"study": study_id})
