"""Chart of a tuning target's speed over time: answers of studies and retunes, and canaries."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from shardtune.api_schemas.recommendations.best import RecommendationState
from shardtune.api_schemas.retuning.canaries import CanaryVerdict
from shardtune.db.queries import canaries
from shardtune.db.queries.recommendations import study_recommendations
from shardtune.db.tables.best import RecommendationRow
from shardtune.db.tables.canaries import CanaryRow
from shardtune.service.pages.charts.over_time import SpeedMeasurement, over_time
from shardtune.service.pages.charts.plot import Plot

_MOST = 200
"""Maximum number of answers in the chart, and of canaries (checks for slowdowns); the newest are shown."""
_EVER_RECOMMENDED = (RecommendationState.RECOMMENDED, RecommendationState.RETIRED)
CANARY_TEXTS = {
    CanaryVerdict.NORMAL: "canary, as fast as before",
    CanaryVerdict.SLOW: "canary, slow",
    CanaryVerdict.DRIFT: "canary, slow on every worker",
    CanaryVerdict.WORKER: "canary, slow on this worker alone",
    CanaryVerdict.UNMEASURED: "canary",
}


def chart(session: Session, study_id: str) -> Plot | None:
    """Return the chart of a tuning target's speed over time, on all hardware and software; None if there are fewer
    than two measurements."""
    row = study_recommendations.newest_of_study(session, study_id)
    if row is None:
        return None
    # A change of hardware or software gives the target a new key: the chart spans all of them.
    keys = study_recommendations.keys_of_target(session, row.project_id, row.target_key)
    measurements = [_answer(answer) for answer in study_recommendations.of_target(session, row.project_id, keys, _MOST)]
    measurements += _canaries(canaries.measured_canaries(session, row.project_id, keys, _MOST))
    return over_time(sorted(measurements, key=lambda measured: measured.at))


def _answer(row: RecommendationRow) -> SpeedMeasurement:
    best = row.answer.result.best
    source = "a retune" if row.answer.renewed is not None else "a study"
    state = "" if row.state in _EVER_RECOMMENDED else f", {row.state.value}"
    return SpeedMeasurement(
        at=row.created_at,
        tokens_per_s_per_gpu=best.tokens_per_s_per_gpu,
        spread=best.spread,
        words=f"{best.description}, the answer of {source}{state}",
        href=f"/studies/{row.study_id}",
        kind="own" if row.state in _EVER_RECOMMENDED else "early",
    )


def _canaries(rows: Sequence[CanaryRow]) -> list[SpeedMeasurement]:
    return [
        SpeedMeasurement(
            at=row.created_at,
            tokens_per_s_per_gpu=row.tokens_per_s_per_gpu,
            spread=None,
            words=CANARY_TEXTS[row.verdict] if row.verdict is not None else "canary",
            href=f"/studies/{row.study_id}",
            kind="canary" if row.verdict in (CanaryVerdict.NORMAL, None) else "infeasible",
        )
        for row in rows
        if row.tokens_per_s_per_gpu is not None
    ]
