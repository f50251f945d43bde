"""Recommendations that wait for a person's approval: not given out yet, but reported instead of "nothing known"."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from shardtune.api_schemas.recommendations.tuning_targets import TuningTarget
from shardtune.db.queries.recommendations import proposals
from shardtune.db.tables.best import RecommendationRow
from shardtune.service.http.errors import NotFound


def newest_proposal(session: Session, project_id: str, cases: Sequence[TuningTarget]) -> RecommendationRow | None:
    """Newest recommendation for one of these tuning targets (model, workload, cluster) that nobody has approved or
    rejected.
    """
    keys = [case.target_key_without_fingerprint for case in cases]
    return proposals.newest_proposal_on_any_fingerprint(session, project_id, keys)


def awaits_approval(recommendation: RecommendationRow | None) -> NotFound | None:
    """Error for a tuning target (model, workload, cluster) whose recommendation waits for approval; None if no
    recommendation waits.
    """
    # A platform that polls must not start another study while a person has yet to decide.
    if recommendation is None:
        return None
    return NotFound(
        "awaits_approval",
        f"study {recommendation.study_id} has a recommendation for this tuning target ({recommendation.answer.result.best.description}), which waits for approval: "
        f"POST /v1/best:approve?target_key={recommendation.target_key}, or :reject",
    )
