"""Choose the cluster and worker of a new study."""

from collections.abc import Sequence

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.http.errors import Invalid
from shardtune.service.studies import validation
from shardtune.service.workers import study_clusters
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
