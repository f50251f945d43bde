"""What a study's trials say together, from their stored figures."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.insights import Importance, ParetoFront, ParetoPoint
from shardtune.api_schemas.trials.trial import FEASIBLE_STATES
from shardtune.db.listing import Page
from shardtune.db.queries import trial_points
from shardtune.db.queries.trial_points import TrialFilter, TrialPoint
from shardtune.service.process.context import Context
from shardtune.service.studies.create_and_read import must_exist
from shardtune.tuner.insights import importance, pareto
from shardtune.tuner.objective import available_gib
from shardtune.tuner.search.space.flat import flatten
from shardtune.tuner.search.space.legal_values import Flat

_MOST_TRIALS = 2_000
"""Looked at, the newest first: a study of more is rare, and reading them all would take seconds."""
_MOST_WEIGHED = 500
"""For the importance of knobs, the newest: so many take a third of a second."""


def pareto_front(context: Context, study_id: str) -> ParetoFront:
    """The best speed for each amount of memory.

    Raises:
        NotFound: no such study.
    """
    with context.db.read() as session:
        row = must_exist(context, session, study_id)
        points = _feasible(session, study_id)
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
    """Which knobs mattered for speed.

    Raises:
        NotFound: no such study.
    """
    with context.db.read() as session:
        must_exist(context, session, study_id)
        points = _feasible(session, study_id)
    return importance_of(points, [flatten(TrialConfig.model_validate(point.config)) for point in points])


def importance_of(points: Sequence[TrialPoint], tables: Sequence[Flat]) -> Importance:
    """Which knobs mattered among feasible trials, given with their knobs as tables."""
    rows = [(tuple(table.items()), point.tokens_per_s_per_gpu) for point, table in zip(points, tables, strict=True)]
    return importance.importance(tuple((knobs, speed) for knobs, speed in rows[-_MOST_WEIGHED:] if speed is not None))


def front_of(points: Sequence[TrialPoint]) -> list[ParetoPoint]:
    """Those of the feasible trials that no other beats in both speed and memory, by rising memory."""
    sized = [
        (peak, speed, point)
        for point in points
        if (peak := point.measured_peak_gib) is not None and (speed := point.tokens_per_s_per_gpu) is not None
    ]
    front = pareto.front(sized, lambda entry: entry[0], lambda entry: entry[1])
    return [_point(point, peak, speed) for peak, speed, point in front]


def _point(point: TrialPoint, peak_gib: float, speed: float) -> ParetoPoint:
    config = TrialConfig.model_validate(point.config)
    return ParetoPoint(
        trial_number=point.number,
        config=config,
        description=config.describe(),
        tokens_per_s_per_gpu=speed,
        peak_memory_gib=peak_gib,
    )


def _feasible(session: Session, study_id: str) -> list[TrialPoint]:
    chosen = TrialFilter(states=FEASIBLE_STATES)
    points = trial_points.of_study(session, study_id, chosen, Page("number", True, _MOST_TRIALS))
    return sorted(points, key=lambda point: point.number)
