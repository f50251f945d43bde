"""Find the clusters that the name `local` means in a request for a recommendation."""

from collections.abc import Sequence

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.db.queries import best
from shardtune.service.http.errors import invalid
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility, hardware_shape, registry, study_clusters


def local_clusters(context: Context, project_id: str) -> Sequence[Cluster]:
    """Clusters that the name `local` can mean: the cluster of the live workers, or, without live workers, the
    clusters for which there are recommendations.

    Several clusters are returned only if they differ in memory alone.

    Raises:
        Invalid: no worker or recommendation has a cluster, or their clusters differ.
    """
    # `tune` measures on `local`, and its worker ends with it: without the second source its results could not be found
    # later.
    with context.db.read() as session:
        live = registry.live_workers(context, session, project_id)
        if live:
            return [study_clusters.local_worker(live).offer.cluster]
        recommended = best.recommended_clusters(session, project_id)
    clusters = list({cluster.content_key(): cluster for cluster in recommended}.values())
    if clusters and all(_has_same_shape(cluster, clusters[0]) for cluster in clusters):
        return clusters
    described = "; ".join(compatibility.describe(cluster) for cluster in clusters)
    known_clusters = (
        f"there are recommendations for several clusters ({described})" if clusters else "nothing is recommended here"
    )
    message = f"cluster (local) means the live workers' cluster, and there is no worker; {known_clusters}; spell the cluster out"
    raise invalid("cluster", "local", message, code="no_worker")


def _has_same_shape(first: Cluster, second: Cluster) -> bool:
    return hardware_shape.has_same_shape(first, second) and hardware_shape.has_same_shape(second, first)
