"""Answers that wait for approval: not served yet, and not nothing either."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from shardtune.api_schemas.recommendations.tuning_targets import Case
from shardtune.db.queries import best
from shardtune.db.tables.best import RecommendationRow
from shardtune.service.http.errors import NotFound


def proposed(session: Session, project_id: str, cases: Sequence[Case]) -> RecommendationRow | None:
    """The newest answer for one of these cases that nobody has approved or rejected."""
    keys = [case.target_key_without_fingerprint for case in cases]
    return best.newest_proposal_of_shapes(session, project_id, keys)


def rejection(found: RecommendationRow | None) -> NotFound | None:
    """What is said where there is an answer that nobody has approved yet."""
    if found is None:
        return None
    return NotFound(
        "awaits_approval",
        f"study {found.study_id} has an answer for this case ({found.answer.result.best.description}) that waits for approval: "
        f"POST /v1/best:approve?target_key={found.target_key}, or :reject",
    )
