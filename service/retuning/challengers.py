"""Whom a retune runs beside the incumbent: what else is served, the old search's runner-ups, the predictor's favourites."""

import random
from collections.abc import Iterable, Sequence

from numpy import float64
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from shardtune.api_schemas.recommendations.tuning_targets import Case
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.db.queries import best, trials
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.studies import FingerprintRow, StudyRow
from shardtune.service.planning import calibrations, study_snapshot
from shardtune.service.planning.calibrations import Experience
from shardtune.service.planning.planner_cache import PlannerCache
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction import learning, traced_shape
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.search import space
from shardtune.tuner.search.space import Space
from shardtune.tuner.verdict import challenge

_MOST_PREDICTED = 1500


def choose(
    planner_cache: PlannerCache, session: Session, row: TuningTargetRow, origin: StudyRow, fingerprint_key: str
) -> tuple[tuple[TrialConfig, ...], tuple[str, ...]]:
    """At most three configurations, and in words where each comes from."""
    assert row.serving is not None
    incumbent = row.serving.answer.result.best.config
    history = tuple(observed(session, origin))
    runner_ups = challenge.runner_ups(history, incumbent)
    known = _known_there(session, row, origin, fingerprint_key)
    favourites = _favourites(planner_cache, session, origin, history, incumbent, fingerprint_key)
    chosen = challenge.challengers(known, runner_ups, favourites, incumbent)
    return chosen, tuple(f"{config.describe()}: {_whence(config, known, runner_ups)}" for config in chosen)


def observed(session: Session, study: StudyRow) -> Iterable[Observation]:
    """A study's trials as the tuner sees them."""
    return (study_snapshot.observation(row, study.comparison_round) for row in trials.of_study(session, study.id))


def unpaired(session: Session, study: StudyRow) -> str:
    """How far the challengers of a study came of whom none was paired with the incumbent."""
    assert study.result is not None
    stands = study.result.best
    rivals = [obs for obs in observed(session, study) if obs.number != stands.trial_number]
    speeds = [obs.measurement.tokens_per_s_per_gpu for obs in rivals if obs.measurement is not None]
    if not rivals or not speeds:
        return f"none of {len(rivals)} challengers could be measured" if rivals else "there was no challenger"
    share = max(speeds) / stands.tokens_per_s_per_gpu
    return f"{len(speeds)} of {len(rivals)} challengers were measured, the nearest reached {share:.0%} of its speed"


def _whence(config: TrialConfig, known: TrialConfig | None, runner_ups: tuple[TrialConfig, ...]) -> str:
    if config == known:
        return "served for this case on the present fingerprint"
    return "a runner-up of the last search" if config in runner_ups else "predicted to be faster here"


def _known_there(session: Session, row: TuningTargetRow, origin: StudyRow, fingerprint_key: str) -> TrialConfig | None:
    """What a study of its own has found for the case on the present fingerprint."""
    fingerprint = session.get(FingerprintRow, fingerprint_key)
    assert fingerprint is not None
    key = Case(origin.spec.model, origin.spec.workload, origin.cluster).target_key(fingerprint.value)
    there = best.served(session, row.project_id, key)
    if there is None or there.serving is None:
        return None
    return there.serving.answer.result.best.config


def _favourites(
    planner_cache: PlannerCache,
    session: Session,
    origin: StudyRow,
    history: tuple[Observation, ...],
    incumbent: TrialConfig,
    fingerprint_key: str,
) -> tuple[TrialConfig, ...]:
    model_summary = origin.model_summary
    shape = traced_shape.of_study(origin.spec.model, model_summary) if model_summary is not None else None
    if shape is None or model_summary is None:
        return ()
    spec = origin.spec
    cores = origin.fingerprint.value.cpu_count if origin.fingerprint else None
    built = space.build(spec.workload, origin.cluster, model_summary, spec.space, cores)
    past = calibrations.of(planner_cache, session, origin.fingerprint_key, origin.project_id)
    present = calibrations.of(planner_cache, session, fingerprint_key, origin.project_id)
    # Before anything ran there, what its software and hardware teach is what the old ones taught.
    factors = present.calibrations if present.calibrations.speed.rows else past.calibrations
    now = Experience(factors, present.hardware or past.hardware)

    def predict(known: Experience, shape: ModelShape) -> challenge.Predict:
        def speeds(configs: Sequence[TrialConfig]) -> NDArray[float64] | None:
            return learning.predict_speeds(
                shape, spec.workload, origin.cluster, configs, known.calibrations, known.hardware
            )

        return speeds

    return challenge.favourites(_some(built, origin.id), history, incumbent, predict(past, shape), predict(now, shape))


def _some(built: Space, salt: str) -> Iterable[TrialConfig]:
    """The whole space where it is small, else a sample of it."""
    if built.size(_MOST_PREDICTED + 1) <= _MOST_PREDICTED:
        return built.enumerate()
    rng = random.Random(salt)
    draws = (built.sample(lambda _, values: rng.choice(values)) for _ in range(_MOST_PREDICTED))
    return (config for config in draws if config is not None)
