"""Decide which run may begin on a host that several workers share.

Note [host turns]: runs execute side by side if they share neither a device nor a link of their collectives. A run that
decides something has the host alone: it begins only while nothing runs, and nothing begins beside it. Requests that
must wait are ordered: exclusive runs first, then first in, first out.
"""

from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.machines.host_partition import HostPartition, HostWait
from shardtune.api_schemas.studies.system_studies import SystemStudy, SystemStudyKind
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db import hosts
from shardtune.db.hosts import CoTenant
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.lifecycle.outcomes import JudgedEnd
from shardtune.service.process.context import Context

# A waiting worker asks at least every few seconds, and its last-seen time is written every 15 s: three writes must have
# been missed.
_SILENT = timedelta(seconds=45)
"""Time without a request after which a worker loses its place in the queue for its host."""

Outcome = TypeVar("Outcome", Measurement, Failure)


_SHARING = (RunPurpose.MODEL_SUMMARY, RunPurpose.SEARCH, RunPurpose.REHEARSAL)
"""Purposes of runs that may execute while other workers of the same host are busy, because the times that these runs
measure decide nothing.
"""


def needs_exclusive_host(purpose: RunPurpose, system_study: SystemStudy | None) -> bool:
    """Whether a run needs its host alone, so that no other worker's run may execute beside it. True for validation
    runs, resume checks, traces, canaries (repeated runs of recommended configurations) and challenges.
    """
    is_search = system_study is None or system_study.kind == SystemStudyKind.SEARCH
    return not is_search or purpose not in _SHARING


def admits(context: Context, session: Session, study: StudyRow, run: RunRow, worker: WorkerRow) -> bool:
    """Whether a waiting run may begin on a worker that shares its host with others. If it may not, the worker enters
    the queue for the host.

    The caller has locked the study, and leases the run in this transaction.
    """
    assert worker.host_id is not None and worker.offer.host_partition is not None
    # Reading the co-tenants and writing the lease happen under this lock, so that two replicas never both find the host
    # free.
    hosts.lock_host(session, worker.host_id)
    now, is_exclusive = context.now(), needs_exclusive_host(run.purpose, study.system_study)
    # A worker that asked before keeps its place, unless the kind of its wait changed: an exclusive run queues by
    # itself.
    earlier_wait = (
        worker.host_wait if worker.host_wait is not None and worker.host_wait.is_exclusive == is_exclusive else None
    )
    own_wait = earlier_wait or HostWait(since=now, is_exclusive=is_exclusive)
    co_tenants = [
        co_tenant if now - co_tenant.seen_at < _SILENT else replace(co_tenant, host_wait=None)
        for co_tenant in hosts.co_tenants(session, worker)
    ]
    is_free = not any(must_wait_for(worker.offer.host_partition, own_wait, tenant) for tenant in co_tenants)
    # A worker whose exclusive run begins keeps its place until it asks and there is no further run: the runs of a pair
    # follow each other, and a search that slipped in between would disturb the second.
    worker.host_wait = own_wait if is_exclusive or not is_free else None
    return is_free


def must_wait_for(partition: HostPartition, own_wait: HostWait, co_tenant: CoTenant) -> bool:
    """Whether a run on a part of a host (a host partition) has to wait for another worker on the same host: because
    that worker executes a run now, or is ahead in the queue.
    """
    if co_tenant.purpose is not None:
        co_tenant_is_exclusive = needs_exclusive_host(co_tenant.purpose, co_tenant.system_study)
        return co_tenant_is_exclusive or own_wait.is_exclusive or partition.conflicts_with(co_tenant.host_partition)
    if co_tenant.host_wait is None:
        return False
    comes_first = (not co_tenant.host_wait.is_exclusive, co_tenant.host_wait.since) < (
        not own_wait.is_exclusive,
        own_wait.since,
    )
    return comes_first and (co_tenant.host_wait.is_exclusive or partition.conflicts_with(co_tenant.host_partition))


def with_co_tenants(session: Session, run: RunRow, ended: JudgedEnd) -> JudgedEnd:
    """Add to a run's measurement how many other workers executed something on the same host while the run was
    measured. The caller has locked the run.
    """
    count = hosts.count_concurrent_workers(session, run) if run.host_id is not None else 0
    if not count:
        return ended
    return replace(
        ended,
        measurement=_with_co_tenant_count(ended.measurement, count),
        failure=_with_co_tenant_count(ended.failure, count),
    )


def _with_co_tenant_count(outcome: Outcome | None, count: int) -> Outcome | None:
    if outcome is None:
        return None
    conditions = (outcome.conditions or Conditions()).model_copy(update={"co_tenants": count})
    return outcome.model_copy(update={"conditions": conditions})
