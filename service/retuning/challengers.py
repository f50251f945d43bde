"""Choose the configurations that a retune runs beside the incumbent: the recommendation for the present fingerprint,
runner-ups of the old search, and configurations predicted to be fast.
"""

import random
from collections.abc import Iterable, Sequence

from numpy import float64
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from shardtune.api_schemas.recommendations.tuning_targets import TuningTarget
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.db.queries import best, trials
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.fingerprints import FingerprintRow
from shardtune.db.tables.studies import StudyRow
from shardtune.service.planning import calibrations, study_snapshot
from shardtune.service.planning.calibrations import Experience
from shardtune.service.planning.planner_cache import PlannerCache
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction import learning, traced_shape
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.shapes import calibration_choice
from shardtune.tuner.search import space
from shardtune.tuner.search.space import Space
from shardtune.tuner.verdict import challenge

_MAX_PREDICTED = 1500


def choose_challengers(
    planner_cache: PlannerCache, session: Session, row: TuningTargetRow, origin: StudyRow, fingerprint_key: str
) -> tuple[tuple[TrialConfig, ...], tuple[str, ...]]:
    """Choose at most three challengers (configurations that may replace the recommended one, the incumbent). Each
    comes with a text that names its source.
    """
    assert row.recommended is not None
    incumbent = row.recommended.answer.result.best.config
    history = tuple(observations_of(session, origin))
    runner_ups = challenge.runner_ups(history, incumbent)
    recommended_there = _recommended_there(session, row, origin, fingerprint_key)
    favourites = _favourites(planner_cache, session, origin, history, incumbent, fingerprint_key)
    chosen = challenge.challengers(recommended_there, runner_ups, favourites, incumbent)
    return chosen, tuple(
        f"{config.describe()}: {_describe_source(config, recommended_there, runner_ups)}" for config in chosen
    )


def observations_of(session: Session, study: StudyRow) -> Iterable[Observation]:
    """Convert the trials of a study into the form that the tuner reads."""
    return (study_snapshot.observation(row, study.comparison_round) for row in trials.of_study(session, study.id))


def describe_unpaired(session: Session, study: StudyRow) -> str:
    """Describe the speed of the challengers relative to the incumbent (recommended configuration), for a challenge
    study in which no pair of runs compared them.
    """
    assert study.result is not None
    winner = study.result.best
    rivals = [obs for obs in observations_of(session, study) if obs.number != winner.trial_number]
    speeds = [obs.measurement.tokens_per_s_per_gpu for obs in rivals if obs.measurement is not None]
    if not rivals or not speeds:
        return f"none of {len(rivals)} challengers could be measured" if rivals else "there was no challenger"
    fraction = max(speeds) / winner.tokens_per_s_per_gpu
    return f"{len(speeds)} of {len(rivals)} challengers were measured, the nearest reached {fraction:.0%} of its speed"


def _describe_source(
    config: TrialConfig, recommended_there: TrialConfig | None, runner_ups: tuple[TrialConfig, ...]
) -> str:
    if config == recommended_there:
        return "recommended for this tuning target on the present fingerprint"
    return "a runner-up of the last search" if config in runner_ups else "predicted to be faster here"


def _recommended_there(
    session: Session, row: TuningTargetRow, origin: StudyRow, fingerprint_key: str
) -> TrialConfig | None:
    """Configuration that a study recommended for the same tuning target (model, workload, cluster) on the hardware
    and software versions that are present now.
    """
    fingerprint = session.get(FingerprintRow, fingerprint_key)
    assert fingerprint is not None
    key = TuningTarget(origin.spec.model, origin.spec.workload, origin.cluster).target_key(fingerprint.value)
    target = best.get_target(session, row.project_id, key)
    if target is None or target.recommended is None:
        return None
    return target.recommended.answer.result.best.config


def _favourites(
    planner_cache: PlannerCache,
    session: Session,
    origin: StudyRow,
    history: tuple[Observation, ...],
    incumbent: TrialConfig,
    fingerprint_key: str,
) -> tuple[TrialConfig, ...]:
    model_summary = origin.model_summary
    shape = (
        traced_shape.of_study(origin.spec.model, model_summary, origin.spec.workload.adapter)
        if model_summary is not None
        else None
    )
    if shape is None or model_summary is None:
        return ()
    spec = origin.spec
    cores = origin.fingerprint.value.cpu_count if origin.fingerprint else None
    search_space = space.build(spec.workload, origin.cluster, model_summary, spec.space, cores)
    past_experience = calibrations.experience_of(planner_cache, session, origin.fingerprint_key, origin.project_id)
    present = calibrations.experience_of(planner_cache, session, fingerprint_key, origin.project_id)
    # Before any run on the new fingerprint, the calibrations of the old one are the best estimate.
    is_known = calibration_choice.speed_calibration(present.calibrations, shape).rows > 0
    factors = present.calibrations if is_known else past_experience.calibrations
    present_experience = Experience(factors, present.hardware or past_experience.hardware)

    def predict(experience: Experience, shape: ModelShape) -> challenge.Predict:
        def speeds(configs: Sequence[TrialConfig]) -> NDArray[float64] | None:
            return learning.predict_speeds(
                shape, spec.workload, origin.cluster, configs, experience.calibrations, experience.hardware
            )

        return speeds

    return challenge.favourites(
        _candidate_configs(search_space, origin.id),
        history,
        incumbent,
        predict(past_experience, shape),
        predict(present_experience, shape),
    )


def _candidate_configs(search_space: Space, salt: str) -> Iterable[TrialConfig]:
    """Configurations whose speed is predicted in order to choose challengers: the whole search space if it is small,
    else a sample.
    """
    if search_space.size(_MAX_PREDICTED + 1) <= _MAX_PREDICTED:
        return search_space.enumerate()
    # Seeded by the study's id, so that a repeated step chooses the same challengers.
    rng = random.Random(salt)
    draws = (search_space.sample(lambda _, values: rng.choice(values)) for _ in range(_MAX_PREDICTED))
    return (config for config in draws if config is not None)
