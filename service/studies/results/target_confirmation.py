"""Files that confirm a projection on the target: a study of its first and second choice, and the Slurm job that runs it."""

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.targets import StudyProjection
from shardtune.service.planning.target_comparison import comparing_study
from shardtune.tuner.export.quoting import remark
from shardtune.tuner.export.templates import fill

STUDY_FILE, JOB_FILE = "confirm.json", "confirm.sbatch"


def files(study: Study, projection: StudyProjection) -> dict[str, str]:
    """Return a job file and a study file for testing a projection (prediction for a larger cluster) on that cluster.
    They are empty if the projection has no second choice or the cluster has one node. They are also empty for
    user-written model code, which the job's worker would have to allow.
    """
    if not projection.runners_up or projection.cluster.nodes == 1 or study.spec.model.is_own:
        return {}
    request = comparing_study(study.study_id, study.spec, projection)
    job = fill(
        JOB_FILE,
        first=remark(projection.best.description),
        second=remark(projection.runners_up[0].description),
        study=study.study_id,
        nodes=str(projection.cluster.nodes),
        gpus=""
        if projection.cluster.device == "cpu"
        else f"\n#SBATCH --gpus-per-node={projection.cluster.gpus_per_node}",
    )
    return {STUDY_FILE: request.model_dump_json(indent=2) + "\n", JOB_FILE: job}
