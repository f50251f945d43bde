"""Files that confirm a projection on the target: a study of its first and second choice, and the Slurm job that runs it."""

from shardtune.api_schemas.studies.study import Budget, Study, StudyRequest
from shardtune.api_schemas.studies.targets import StudyProjection
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.tuner.export.quoting import remark
from shardtune.tuner.export.templates import fill
from shardtune.tuner.search.space.flat import flatten

STUDY_FILE, JOB_FILE = "confirm.json", "confirm.sbatch"
_IMPLIED = ("backend", "dp_replicate")
"""Knobs that follow from other limits."""


def files(study: Study, projection: StudyProjection) -> dict[str, str]:
    """Return the files that confirm a projection or change it; empty without a second choice, on one node, and for the
    user's own code, which the job's worker would have to allow."""
    if not projection.runners_up or projection.cluster.nodes == 1 or study.spec.model.is_own:
        return {}
    request = comparing_study(study, projection)
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


def comparing_study(study: Study, projection: StudyProjection) -> StudyRequest:
    """Return the study that compares the first choice with the second on the target, in pairs of runs.

    The second choice is the baseline, and all knobs are limited to the first choice.
    """
    knobs = {name: value for name, value in flatten(projection.best.config).items() if name not in _IMPLIED}
    workload = study.spec.workload.model_copy(update={"global_batch": projection.global_batch})
    spec = study.spec
    return StudyRequest(
        model=spec.model,
        workload=workload,
        cluster=projection.cluster,
        objective=spec.objective,
        budget=Budget(max_trials=2, max_pairs=spec.budget.max_pairs, resume_check=False),
        baseline=projection.runners_up[0].config,
        space=SpaceLimits(backends=(projection.best.config.strategy.kind,), knobs=knobs),
        checkpoint_every_s=spec.checkpoint_every_s,
    )
