"""Build the sampler that a study's user has chosen and its first configurations (seeds), using known hardware rates."""

from collections.abc import Iterator, Sequence

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.service.planning.planner_cache import PlannerCache
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.tuner.objective import available_gib
from shardtune.tuner.prediction import learning
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.shapes import calibration_choice
from shardtune.tuner.search import seeds
from shardtune.tuner.search.guided_sampler.knowledge import Knowledge
from shardtune.tuner.search.guided_sampler.pool import Pool
from shardtune.tuner.search.guided_sampler.predicted_rows import PredictionBasis
from shardtune.tuner.search.guided_sampler.sampler import GuidedSampler
from shardtune.tuner.search.samplers import optuna_samplers
from shardtune.tuner.search.samplers.draw import Draw, Sampler, SearchView
from shardtune.tuner.search.space import Space

_OF_OPTUNA: dict[str, Sampler] = {
    "tpe": optuna_samplers.tpe,
    "gp": optuna_samplers.gp,
    "random": optuna_samplers.uniform,
}


def sampler_of(snapshot: StudySnapshot, space: Space, shape: ModelShape | None, planner_cache: PlannerCache) -> Sampler:
    """Sampler that suggests the configurations of a study. TPE replaces the guided sampler (which uses predicted
    speeds) on hardware whose speeds cannot be predicted.
    """
    spec, calibrations = snapshot.spec, snapshot.calibrations
    if spec.sampler != "guided":
        return _OF_OPTUNA[spec.sampler]
    if shape is None:
        return optuna_samplers.tpe
    basis = PredictionBasis(shape, spec.workload, snapshot.cluster, snapshot.hardware)
    measured = "" if snapshot.hardware is None else snapshot.hardware.content_key()
    limit = available_gib(snapshot.cluster, spec.objective)
    # The trials of a warm start's study reach the sampler as its own history, so they must not count a second time.
    warm_study_id = None if snapshot.warm_start is None else snapshot.warm_start.study_id
    related = tuple(run for run in snapshot.other_studies_runs if run.study != warm_study_id)
    knowledge = Knowledge(
        limit,
        calibration_choice.speed_calibration(calibrations, shape),
        calibration_choice.memory_calibration(calibrations, shape),
        related,
    )

    def guided(view: SearchView) -> Iterator[Draw | None]:
        # Built lazily: the pool takes a second to build, and seeds do not need it.
        pool = planner_cache.pool(snapshot.study_id, measured, lambda: Pool(space, basis))
        return GuidedSampler(pool, knowledge)(view) if pool.knows_speed else optuna_samplers.tpe(view)

    return guided


def seeds_of(snapshot: StudySnapshot, all_seeds: seeds.Seeds, shape: ModelShape | None) -> seeds.Seeds:
    """Seeds of a study: configurations that it runs before the sampler suggests any. If the sampler is guided, only
    the seeds predicted to be fast are run; with other samplers, all are.
    """
    if snapshot.spec.sampler != "guided" or shape is None:
        return all_seeds
    spec, calibrations = snapshot.spec, snapshot.calibrations
    highest = calibration_choice.speed_calibration(calibrations, shape).highest

    def forecast(configs: Sequence[TrialConfig]) -> list[tuple[float, float]] | None:
        speeds = learning.predict_speeds(
            shape, spec.workload, snapshot.cluster, configs, calibrations, snapshot.hardware
        )
        # The second figure is the highest speed that the calibration's uncertainty allows.
        return None if speeds is None else [(float(speed), float(speed) * highest) for speed in speeds]

    return seeds.due_seeds(
        all_seeds, snapshot.history, {rejection.config.content_key() for rejection in snapshot.rejected}, forecast
    )
