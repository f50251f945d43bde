"""Hardware that the cluster name `local` stands for: a live worker's, with what was measured on it."""

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.planning import calibrations
from shardtune.service.planning.calibrations import Experience
from shardtune.service.process.context import Context
from shardtune.service.workers import registry, study_clusters


def local_machine(context: Context) -> tuple[Cluster, DeviceDtypes, Experience]:
    """Return the cluster of the live workers, the data types that its devices support, and the measurements that were
    made on these workers' fingerprint (hardware and software versions).

    Raises:
        Invalid: there is no worker, or workers of several clusters.
    """
    with context.db.read() as session:
        worker = study_clusters.local_worker(registry.live_workers(context, session))
    return worker.offer.cluster, DeviceDtypes.from_offer(worker.offer), worker_experience(context, worker)


def worker_experience(context: Context, worker: WorkerRow) -> Experience:
    """Return the measurements under a worker's fingerprint (hardware and software versions) that the sender's project
    may use, with the predictor's calibrations from them.
    """
    with context.db.read() as session:
        return calibrations.experience_of(
            context.planner_cache, session, worker.fingerprint_key, context.principal.home
        )
