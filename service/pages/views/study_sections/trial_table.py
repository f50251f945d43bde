"""Rows of the trials table on a study's page."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.queries.trial_points import TrialPoint
from shardtune.service.pages.charts.search import limit_peak_gib
from shardtune.service.pages.views import words
from shardtune.service.wording import disambiguate


@dataclass(frozen=True)
class TrialLine:
    """One row of the trials table."""

    point: TrialPoint
    config: TrialConfig
    name: str
    """Description of the trial's configuration; no shown trial with another configuration has the same description."""
    peak_gib: float | None
    tone: str
    reason: str
    of_best: float | None
    """Speed divided by the speed of the fastest feasible trial."""


def trial_lines(shown: Sequence[TrialPoint], charted: Sequence[TrialPoint]) -> tuple[TrialLine, ...]:
    """Return the table's rows for the `shown` trials. Each speed is given relative to the fastest of the `charted`
    trials."""
    fastest = max((p.tokens_per_s_per_gpu or 0 for p in charted if p.state == TrialState.COMPLETE), default=0.0)
    configs = [TrialConfig.model_validate(point.config) for point in shown]
    names = disambiguate.distinct_descriptions(configs)
    return tuple(_trial_line(p, c, name, fastest) for p, c, name in zip(shown, configs, names, strict=True))


def _trial_line(point: TrialPoint, config: TrialConfig, name: str, fastest: float) -> TrialLine:
    reason = ""
    if point.failure_kind is not None:
        reason = f"{words.FAILURES.get(point.failure_kind, point.failure_kind)}: {point.failure_message}"
    feasible = point.tokens_per_s_per_gpu is not None and point.state.is_feasible
    return TrialLine(
        point=point,
        config=config,
        name=name,
        peak_gib=limit_peak_gib(point),
        tone=words.TRIAL_TONES[TrialState(point.state)],
        reason=reason,
        of_best=(point.tokens_per_s_per_gpu or 0) / fastest if feasible and fastest else None,
    )
