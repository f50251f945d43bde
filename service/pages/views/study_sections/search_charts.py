"""Charts of a study's search: speeds, memory, knobs, and predictions beside measurements."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.insights import Importance, ParetoPoint
from shardtune.db.listing import Page
from shardtune.db.queries import trial_points
from shardtune.db.queries.trial_points import TrialFilter, TrialPoint
from shardtune.service.pages.charts.parallel import Parallel, parallel
from shardtune.service.pages.charts.plot import Plot
from shardtune.service.pages.charts.search import best_so_far, limit_peak_gib, speed_against_memory
from shardtune.service.pages.views.expected_speed import Expected, expected
from shardtune.service.pages.views.prediction_accuracy import Predicted, predicted
from shardtune.service.studies import insights
from shardtune.tuner.search.space.flat import flatten
from shardtune.tuner.search.space.legal_values import Flat

_MOST_CHARTED = 2_000
"""Maximum number of trials in the charts; the newest are shown. Few studies have more trials, and more points would
not change the shape of the charts."""


@dataclass(frozen=True)
class SearchCharts:
    """Charts of the trials of a search."""

    plots: tuple[Plot, ...]
    parallel: Parallel | None
    predicted: Predicted | None
    expected: Expected | None
    front: tuple[ParetoPoint, ...]
    """Trials that no other trial beats in both speed and memory (Pareto front), as rows of a table for readers who
    cannot use the chart."""
    importance: Importance
    backends: frozenset[str]
    """Names of the backends of the measured trials, which the charts' legend lists."""
    has_unusable: bool
    """Whether the charts leave out some measured trials, such as trials whose losses differ from the others'."""


def charted_points(session: Session, study_id: str) -> list[TrialPoint]:
    """Read the newest trials of a study, in the order of their numbers."""
    points = trial_points.of_study(session, study_id, TrialFilter(), Page("number", True, _MOST_CHARTED))
    # The query returns the newest first, for its limit; charts read from left to right.
    return sorted(points, key=lambda point: point.number)


def search_charts(points: Sequence[TrialPoint], limit_gib: float, link: str, best_number: int | None) -> SearchCharts:
    """Return the charts of a search's trials. `link`: address of the trials' pages, to which a trial's number is
    added."""
    plots = (best_so_far(points, link), speed_against_memory(points, limit_gib, link, best_number))
    flat = [flatten(TrialConfig.model_validate(point.config)) for point in points]
    return SearchCharts(
        plots=tuple(plot for plot in plots if plot is not None),
        parallel=parallel(points, flat, link, best_number),
        predicted=predicted(points, link),
        expected=expected(points, link),
        front=tuple(insights.front_of([p for p in points if p.state.is_feasible])),
        importance=_importance(points, flat),
        backends=frozenset(str(p.config["strategy"]["kind"]) for p in points if p.tokens_per_s_per_gpu),
        has_unusable=any(limit_peak_gib(p) is not None and not p.state.is_feasible for p in points),
    )


def _importance(points: Sequence[TrialPoint], flat: Sequence[Flat]) -> Importance:
    # A failed trial's speed is unknown, not slow: as the slowest it would make its knobs look important.
    ran = [(p, table) for p, table in zip(points, flat, strict=True) if p.state.is_feasible]
    return insights.importance_of([p for p, _ in ran], [table for _, table in ran])
