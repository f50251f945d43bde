"""Who proposes a study's trials: the sampler its user named, with what is known of the hardware."""

from collections.abc import Iterator, Sequence

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.service.planning.planner_cache import PlannerCache
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.tuner.objective import available_gib
from shardtune.tuner.prediction import learning
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.search import seeds
from shardtune.tuner.search.guided_sampler.pool import Pool, PredictionBasis
from shardtune.tuner.search.guided_sampler.sampler import GuidedSampler, Knowledge
from shardtune.tuner.search.samplers import optuna_samplers
from shardtune.tuner.search.samplers.draw import Draw, Sampler, SearchView
from shardtune.tuner.search.space import Space

_OF_OPTUNA: dict[str, Sampler] = {
    "tpe": optuna_samplers.tpe,
    "gp": optuna_samplers.gp,
    "random": optuna_samplers.uniform,
}


def of(seen: StudySnapshot, space: Space, shape: ModelShape | None, planner_cache: PlannerCache) -> Sampler:
    """The study's sampler; TPE in place of the guided one where nothing predicts its speeds."""
    spec, known = seen.spec, seen.calibrations
    if spec.sampler != "guided":
        return _OF_OPTUNA[spec.sampler]
    if shape is None:
        return optuna_samplers.tpe
    basis = PredictionBasis(shape, spec.workload, seen.cluster, seen.hardware)
    measured = "" if seen.hardware is None else seen.hardware.content_key()
    limit = available_gib(seen.cluster, spec.objective)
    earlier = None if seen.warm is None else seen.warm.study_id
    related = tuple(run for run in seen.related if run.study != earlier)
    learnt = Knowledge(limit, known.speed, learning.memory_of(known, shape), related)

    def guided(view: SearchView) -> Iterator[Draw | None]:
        # The pool takes a second to make, which seeds do not need.
        pool = planner_cache.pool(seen.study_id, measured, lambda: Pool(space, basis))
        return GuidedSampler(pool, learnt)(view) if pool.knows_speed else optuna_samplers.tpe(view)

    return guided


def seeds_of(seen: StudySnapshot, given: seeds.Seeds, shape: ModelShape | None) -> seeds.Seeds:
    """What runs before the sampler is asked: by prediction where the study is guided by it, else all of them."""
    if seen.spec.sampler != "guided" or shape is None:
        return given
    spec, known = seen.spec, seen.calibrations

    def forecast(configs: Sequence[TrialConfig]) -> list[tuple[float, float]] | None:
        speeds = learning.predict_speeds(shape, spec.workload, seen.cluster, configs, known, seen.hardware)
        return None if speeds is None else [(float(speed), float(speed) * known.speed.highest) for speed in speeds]

    return seeds.due_seeds(
        given, seen.history, {rejection.config.content_key() for rejection in seen.rejected}, forecast
    )
