"""Configurations with which recipes can train on a cluster."""

from collections.abc import Sequence

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig, sample_groups
from shardtune.api_schemas.studies.recipes import RecipeRun, changed
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.training import float8_checks
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.history import Observation


def workload_of(spec: StudySpec, recipe: RecipeRun) -> Workload:
    """Workload of a recipe's run: the study's, with the recipe's precision or optimizer."""
    return spec.workload if recipe.name is None else changed(spec.workload, recipe.name)


def why_illegal(name: str | None, config: TrialConfig, spec: StudySpec, cluster: Cluster) -> str | None:
    """Reason why a configuration cannot train with a recipe (precision or optimizer) on a cluster; None if it can, as
    far as is known before it runs."""
    try:
        workload = spec.workload if name is None else changed(spec.workload, name)
        float8_checks.check_model(spec.model, workload.float8)
        float8_checks.check_precision(workload, device=cluster.device)
        sample_groups.check(config, cluster, workload, spec.model)
        accumulation = config.accumulation(workload.global_batch, cluster.world_size)
        config.strategy.check_cluster(cluster, workload.precision, accumulation)
    except ValueError as error:
        return str(error)
    return None


def by_speed(history: Sequence[Observation]) -> list[Observation]:
    """Complete trials, fastest search run first."""
    measured = [obs for obs in history if obs.state is TrialState.COMPLETE and obs.measurement is not None]
    return sorted(measured, key=lambda obs: -obs.measurement.tokens_per_s_per_gpu if obs.measurement else 0.0)


def first_legal(
    name: str | None, trials: Sequence[Observation], spec: StudySpec, cluster: Cluster
) -> TrialConfig | None:
    """Configuration of the first trial that can train with a recipe (precision or optimizer); None if none can."""
    return next((obs.config for obs in trials if why_illegal(name, obs.config, spec, cluster) is None), None)
