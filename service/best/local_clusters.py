"""The cluster that `local` means to who asks for an answer."""

from collections.abc import Sequence

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.db.queries import best
from shardtune.service.http.errors import invalid
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility, registry


def meant(context: Context, project_id: str) -> Sequence[Cluster]:
    """That of the live workers; where there is none, that of what is served: `tune` measures on `local`, and its worker goes
    with it. Several where they differ in memory alone.

    Raises:
        Invalid: there is none, or there are several.
    """
    with context.db.read() as session:
        live = registry.live(context, session, project_id)
        if live:
            return [compatibility.local_worker(live).offer.cluster]
        served = best.served_clusters(session, project_id)
    clusters = list({cluster.content_key(): cluster for cluster in served}.values())
    if clusters and all(_is_same(cluster, clusters[0]) for cluster in clusters):
        return clusters
    listed = "; ".join(compatibility.describe(cluster) for cluster in clusters)
    there = f"answers are served for several clusters ({listed})" if clusters else "nothing is served here"
    message = f"cluster (local) means the live workers' cluster, and there is no worker; {there}; spell the cluster out"
    raise invalid("cluster", "local", message, code="no_worker")


def _is_same(one: Cluster, other: Cluster) -> bool:
    return compatibility.same_shape(one, other) and compatibility.same_shape(other, one)
