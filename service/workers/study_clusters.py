"""Find the cluster that a study names, its host memory and its data types, from the workers that are live."""

from collections.abc import Sequence
from dataclasses import replace

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.http.errors import Invalid, invalid, invalid_from_value_error
from shardtune.service.workers.compatibility import can_train_all, describe, has_hardware
from shardtune.tuner.prediction import catalogue


def resolve_cluster(spec: StudyRequest, live: Sequence[WorkerRow]) -> tuple[Cluster, WorkerRow | None]:
    """Find the cluster that a study names, and a live worker that has this cluster; no worker if the study is allowed
    to wait for one.

    Raises:
        Invalid: no worker has the cluster, its name is unknown, or `local` is ambiguous.
    """
    cluster, may_wait = named_cluster(spec), spec.wait_for_worker_s is not None
    if cluster is None:
        return _resolve_local(spec, live)
    is_named = isinstance(spec.cluster, str)
    suitable = [worker for worker in live if has_hardware(worker.offer, cluster, any_host_memory=is_named)]
    allowed_worker = next((worker for worker in suitable if can_train_all(worker.offer, spec)), None)
    if allowed_worker is not None or may_wait:
        return with_host_memory(cluster, allowed_worker, is_named=is_named), allowed_worker
    if suitable:
        # No worker allows the model's code, or trains the adapter: return the first, which the rejection then names.
        return with_host_memory(cluster, suitable[0], is_named=is_named), suitable[0]
    if not live:
        raise _no_worker(cluster, "no worker is registered; start one with `shardtune worker`")
    location = f"over as many hosts (--nodes {cluster.nodes})" if _needs_more_hosts(cluster, live) else "there"
    raise _no_worker(cluster, f"registered: {_list_workers(live)}; start a worker {location}, or change the cluster")


def named_cluster(spec: StudyRequest) -> Cluster | None:
    """Cluster that a study's request contains in full or by a name; None if the request names `local`, the cluster of
    the live workers.
    """
    if isinstance(spec.cluster, Cluster):
        return spec.cluster
    if spec.cluster == "local":
        return None
    try:
        return catalogue.parse_cluster(spec.cluster)
    except ValueError as error:
        raise invalid_from_value_error("cluster", error) from error


def _resolve_local(spec: StudyRequest, live: Sequence[WorkerRow]) -> tuple[Cluster, WorkerRow]:
    if not live and spec.wait_for_worker_s is not None:
        reason = "a study that waits for a worker (wait_for_worker_s) needs its cluster spelt out, such as 8xh100"
        raise _no_worker("local", reason)
    local = local_worker(live)
    worker = next((w for w in live if can_train_all(w.offer, spec)), local)
    return worker.offer.cluster, worker


def _needs_more_hosts(cluster: Cluster, live: Sequence[WorkerRow]) -> bool:
    return cluster.nodes > max(worker.offer.cluster.nodes for worker in live)


def local_worker(live: Sequence[WorkerRow]) -> WorkerRow:
    """Worker whose cluster is meant by the name `local` in a study.

    Raises:
        Invalid: there is no worker, or their clusters differ.
    """
    if not live:
        raise _no_worker("local", "no worker is registered; start one with `shardtune worker`")
    if len({worker.offer.cluster.content_key() for worker in live}) > 1:
        raise _no_worker("local", f"it could mean any of: {_list_workers(live)}; spell the cluster out")
    return live[0]


def with_host_memory(cluster: Cluster, worker: WorkerRow | None, *, is_named: bool) -> Cluster:
    """Return the cluster that a study gives by a short name, such as `8xh100`. If the name stands for more host
    memory than the worker has, the returned cluster has the worker's host memory.
    """
    if worker is None or not is_named:
        return cluster
    present = min(cluster.host_memory_gib, worker.offer.cluster.host_memory_gib)
    return cluster.model_copy(update={"host_memory_gib": present})


def host_memory_notes(named: Cluster | None, present: Cluster) -> tuple[str, ...]:
    """Note for a study whose worker has less host memory than the short name of its cluster (such as `8xh100`) stands
    for.
    """
    if named is None or present.host_memory_gib >= named.host_memory_gib:
        return ()
    return (
        f"host memory: {present.host_memory_gib:,.0f} GiB a node, which the worker has; the cluster's name assumes "
        f"{named.host_memory_gib:,.0f}",
    )


def dtypes_of(cluster: Cluster, live: Sequence[WorkerRow]) -> list[DeviceDtypes]:
    """Data types that the devices of a cluster support natively: as live workers with this cluster report them, else
    as the GPU catalogue lists them.
    """
    # A worker that has not probed its device reports none, and so the catalogue's answer for the GPU's name is used.
    probed = [
        DeviceDtypes.from_offer(worker.offer)
        for worker in live
        if has_hardware(worker.offer, cluster, any_host_memory=True)
    ]
    named = catalogue.dtypes_of(cluster)
    return [replace(dtypes, native=dtypes.native or named.native) for dtypes in probed] or [named]


def _list_workers(live: Sequence[WorkerRow]) -> str:
    return "; ".join(f"{worker.name} with {describe(worker.offer.cluster)}" for worker in live)


def _no_worker(cluster: Cluster | str, reason: str) -> Invalid:
    shown = cluster if isinstance(cluster, str) else describe(cluster)
    return invalid("cluster", shown, f"cluster ({shown}) is not offered by any live worker: {reason}", code="no_worker")
