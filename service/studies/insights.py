"""Insights from all trials of a study, computed from their stored measurements."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.insights import Importance, ParetoFront, ParetoPoint
from shardtune.api_schemas.trials.trial import FEASIBLE_STATES
from shardtune.db.listing import Page
from shardtune.db.queries import trial_points
from shardtune.db.queries.trial_points import TrialFilter, TrialPoint
from shardtune.service.process.context import Context
from shardtune.service.studies.create_and_read import get_study
from shardtune.tuner.insights import importance, pareto
from shardtune.tuner.objective import available_gib
from shardtune.tuner.search.space.flat import flatten
from shardtune.tuner.search.space.legal_values import Flat

# Studies with more are rare, and reading all their trials would take seconds.
_MAX_TRIALS = 2_000
"""Maximum number of a study's trials that its Pareto front and the importance of its parameters are computed from,
newest first.
"""
# PED-ANOVA takes a third of a second for so many.
_MAX_TRIALS_FOR_IMPORTANCE = 500
"""Maximum number of trials from which parameters' importance is computed, newest first."""


def pareto_front(context: Context, study_id: str) -> ParetoFront:
    """Fastest trial of a study for each amount of memory (Pareto front).

    Raises:
        NotFound: no such study.
    """
    with context.db.read() as session:
        row = get_study(context, session, study_id)
        points = _feasible_points(session, study_id)
        limit = available_gib(row.cluster, row.spec.objective)
    front = front_of(points)
    is_reserved = any(point.peak_reserved_gib is not None for point in points)
    return ParetoFront(
        points=tuple(front),
        memory=("reserved" if is_reserved else "allocated") if front else None,
        limit_gib=limit,
        trials=len(points),
    )


def knob_importance(context: Context, study_id: str) -> Importance:
    """Importance of each parameter for speed, estimated from a study's trials.

    Raises:
        NotFound: no such study.
    """
    with context.db.read() as session:
        get_study(context, session, study_id)
        points = _feasible_points(session, study_id)
    return importance_of(points, [flatten(TrialConfig.model_validate(point.config)) for point in points])


def importance_of(points: Sequence[TrialPoint], tables: Sequence[Flat]) -> Importance:
    """Importance of each parameter for speed among the feasible trials; each trial is given as a flat table of its
    parameters.
    """
    rows = [(tuple(table.items()), point.tokens_per_s_per_gpu) for point, table in zip(points, tables, strict=True)]
    return importance.importance(
        tuple((knobs, speed) for knobs, speed in rows[-_MAX_TRIALS_FOR_IMPORTANCE:] if speed is not None)
    )


def front_of(points: Sequence[TrialPoint]) -> list[ParetoPoint]:
    """Feasible trials on the Pareto front, sorted by rising memory: no other trial is both faster and needs less
    memory.
    """
    measured = [
        (peak, speed, point)
        for point in points
        if (peak := point.measured_peak_gib) is not None and (speed := point.tokens_per_s_per_gpu) is not None
    ]
    front = pareto.front(measured, lambda entry: entry[0], lambda entry: entry[1])
    return [_pareto_point(point, peak, speed) for peak, speed, point in front]


def _pareto_point(point: TrialPoint, peak_gib: float, speed: float) -> ParetoPoint:
    config = TrialConfig.model_validate(point.config)
    return ParetoPoint(
        trial_number=point.number,
        config=config,
        description=config.describe(),
        tokens_per_s_per_gpu=speed,
        peak_memory_gib=peak_gib,
    )


def _feasible_points(session: Session, study_id: str) -> list[TrialPoint]:
    feasible_only = TrialFilter(states=FEASIBLE_STATES)
    points = trial_points.of_study(session, study_id, feasible_only, Page("number", True, _MAX_TRIALS))
    return sorted(points, key=lambda point: point.number)
