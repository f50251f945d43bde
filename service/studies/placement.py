"""Choose the cluster and worker of a new study, and say why no worker could run it."""

from collections.abc import Sequence

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.http.errors import Invalid
from shardtune.service.studies import validation
from shardtune.service.workers import (
    offered_adapters,
    offered_float8,
    offered_models,
    offered_optimizers,
    study_clusters,
)
from shardtune.service.workers.compatibility import can_train_all
from shardtune.service.workers.target_rungs import on_rung


def place_study(request: StudyRequest, live: Sequence[WorkerRow]) -> tuple[Cluster, WorkerRow | None]:
    """Choose the cluster that the study names, and a worker that has this cluster; no worker if the study is allowed to
    wait for one.

    Raises:
        Invalid: the request itself is wrong, or no worker has its cluster.
    """
    try:
        return study_clusters.resolve_cluster(request, live)
    except Invalid as error:
        # Errors of the request come first: otherwise its sender would start a worker, and learn of the mistake then.
        if error.code == "no_worker":
            cluster = study_clusters.named_cluster(request)
            fitted = request if cluster is None else on_rung(request, cluster, has_worker=False)
            validation.check_without_worker(fitted, cluster)
        raise


def check_worker(request: StudyRequest, worker: WorkerRow) -> None:
    """Reject a study whose worker lacks its model's code, or the package of its adapter, optimizers or float8.

    Raises:
        Invalid: names the field, its value and the remedy.
    """
    offered_models.check_model(request.model, worker)
    offered_adapters.check_adapter(request.workload, worker)
    offered_optimizers.check_optimizers(request, worker)
    offered_float8.check_float8(request, worker)


def has_worker(request: StudyRequest, live: Sequence[WorkerRow]) -> bool:
    """Whether one of the live workers could execute a new study, or the study may wait for a worker."""
    if request.cluster == "local":
        # Workers of several kinds make the name ambiguous, which one more worker would not change.
        return any(can_train_all(worker.offer, request) for worker in live)
    return why_no_worker(request, live) is None


def why_no_worker(request: StudyRequest, live: Sequence[WorkerRow]) -> str | None:
    """Reason why none of the live workers could run a new study, with the remedy; None if one could, or if the study
    may wait for a worker.
    """
    try:
        _, worker = study_clusters.resolve_cluster(request, live)
        if worker is not None:
            check_worker(request, worker)
    except Invalid as error:
        return error.detail
    return None
