"""Delete and restore studies. A deleted study appears in no list and cannot change; its measurements are kept and still
count.
"""

import logging

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.reasons import StudyReason, StudyReasonCode
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.db.queries import studies
from shardtune.db.queries.recommendations import study_recommendations
from shardtune.db.tables.studies import StudyRow
from shardtune.service.access.actions import SCOPES, Action
from shardtune.service.http import etags
from shardtune.service.http.errors import Conflict, Forbidden
from shardtune.service.http.idempotent_requests import NO_KEY, IdempotencyKey
from shardtune.service.lifecycle import transitions
from shardtune.service.process.context import Context
from shardtune.service.recommendations import withdrawal
from shardtune.service.recommendations.record import DecidedBy
from shardtune.service.recommendations.target_report import take_back_confirmation
from shardtune.service.studies.create_and_read import get_study, study_views

log = logging.getLogger(__name__)


def delete(context: Context, study_id: str, withdraw: bool = False, if_match: str | None = None) -> Study:
    """Delete a study. An unfinished study is cancelled first, and its workers are informed in the response to their
    next heartbeat.

    With `withdraw`, the service stops recommending the study's result and returns to the previous recommendation, if
    there is one. If this study tested another study's projection (prediction for a larger cluster), the projection
    counts as untested again. Without `withdraw`, recommendation and projection stay.

    Raises:
        Conflict: the service created the study for a retune or a canary.
        Forbidden: an administrator has pinned or approved the result that would be withdrawn.
        PreconditionFailed: the study has changed since the sender read it.
    """
    now = context.now()
    with context.db.write() as session:
        get_study(context, session, study_id)
        row = studies.lock(session, study_id)
        etags.check(if_match, study_views(session, [row])[0])
        if row.system_study is not None:
            raise Conflict(
                "made_by_service",
                f"study {row.id} was created by the service and is part of its history; it cannot be deleted",
            )
        if row.state.is_open:
            reason = StudyReason(code=StudyReasonCode.CANCELLED, text="deleted by its user")
            transitions.end_study(session, row, StudyState.CANCELLED, reason, now)
        # Marked, not removed: measurements of the study calibrate the predictor and support recommendations.
        if row.deleted_at is None:
            row.deleted_at = now
            row.version += 1
        if withdraw:
            _withdraw_recommendations(context, session, row)
            take_back_confirmation(session, row, now)
        log.info("study deleted", extra={"study": study_id})
        session.flush()
        return study_views(session, [row])[0]


def undelete(
    context: Context, study_id: str, idempotency: IdempotencyKey = NO_KEY, if_match: str | None = None
) -> Study:
    """Restore a deleted study. If its result was withdrawn as a recommendation, it stays withdrawn, but can be
    approved again.

    Raises:
        PreconditionFailed: the study has changed since the sender read it.
    """
    with idempotency.write(context) as session:
        get_study(context, session, study_id)
        row = studies.lock(session, study_id)
        etags.check(if_match, study_views(session, [row])[0])
        if row.deleted_at is not None:
            row.deleted_at = None
            row.version += 1
        session.flush()
        return idempotency.answer(session, study_views(session, [row])[0])


def _withdraw_recommendations(context: Context, session: Session, row: StudyRow) -> None:
    decided_by = DecidedBy(context.principal.name, context.principal.key_id)
    may_decide = not context.principal.scopes.isdisjoint(SCOPES[Action.DECIDE_ON_BEST])
    for recommendation in study_recommendations.active_recommendations(session, row.id):
        if not may_decide and withdrawal.is_decided(session, recommendation):
            raise Forbidden(
                "scope_missing",
                f"withdraw (true) would undo an administrator's decision: {recommendation.id} was pinned or approved, which "
                f"needs a key with the scope admin; key {context.principal.name} lacks it. Delete the study without withdraw, "
                "or ask an administrator",
            )
        withdrawal.withdraw(session, recommendation, decided_by, "its study was deleted", context.now())
    # Those that another study's answer has replaced must not come back after it.
    withdrawal.reject_replaced(session, row.id)
