"""Decisions of users about recommendations (pin, unpin, approve, reject, roll back), and the history of recommendations
and decisions.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import assert_never

from sqlalchemy.orm import Session

from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.recommendations.best import (
    Decision,
    DecisionAction,
    DecisionPage,
    DecisionRequest,
    Recommendation,
    RecommendationPage,
    RecommendationState,
    UserDecision,
)
from shardtune.db.queries import best, studies
from shardtune.db.queries.recommendations import history, proposals
from shardtune.db.tables.best import DecisionRow, RecommendationRow, TuningTargetRow
from shardtune.service.http import paging
from shardtune.service.http.errors import Conflict, NotFound
from shardtune.service.http.idempotent_requests import NO_KEY, IdempotencyKey
from shardtune.service.process.context import Context
from shardtune.service.recommendations.record import (
    DecidedBy,
    make_current,
    notify,
    project_of,
    record_decision,
    unknown_target,
)
from shardtune.service.recommendations.target_report import report_confirmation

log = logging.getLogger(__name__)

_ACTION_OF = {
    UserDecision.PIN: DecisionAction.PINNED,
    UserDecision.APPROVE: DecisionAction.APPROVED,
    UserDecision.ROLLBACK: DecisionAction.ROLLED_BACK,
}
_NOT_YET_APPROVED = (RecommendationState.PROPOSED, RecommendationState.REJECTED)


def decide(
    context: Context,
    target_key: str,
    action: UserDecision,
    request: DecisionRequest,
    idempotency: IdempotencyKey = NO_KEY,
    project_id: str | None = None,
    check: Callable[[TuningTargetRow], None] = lambda _: None,
) -> Recommendation:
    """Pin, unpin, approve, reject or roll back a recommendation, and return it.

    The function `check` is called with the locked row of the tuning target (model, workload, cluster), and may raise
    to reject the decision.

    Raises:
        NotFound: the target key has no recommendation, or not the one that the request names.
        Conflict: the target's present state leaves nothing to decide.
    """
    now, by = context.now(), DecidedBy(context.principal.name, context.principal.key_id)
    with idempotency.write(context) as session:
        current = best.current_target(session, project_of(context, project_id), target_key)
        # Locked by the present key: a decision under an old key concerns the row that superseded it.
        row = best.lock(session, current.project_id, current.target_key) if current is not None else None
        if row is None:
            raise unknown_target(target_key)
        check(row)
        chosen = _choose(session, row, action, request)
        match action:
            case UserDecision.UNPIN:
                _check_is_current(row, chosen)
                row.is_pinned = False
                recorded_action = DecisionAction.UNPINNED
            case UserDecision.REJECT:
                if chosen.state is not RecommendationState.PROPOSED:
                    raise Conflict(
                        "nothing_to_decide", f"{chosen.id} is {chosen.state.value}; only proposals can be rejected"
                    )
                chosen.state = RecommendationState.REJECTED
                recorded_action = DecisionAction.REJECTED
            case UserDecision.PIN | UserDecision.APPROVE | UserDecision.ROLLBACK:
                is_first_approval = chosen.state in _NOT_YET_APPROVED
                make_current(session, row, chosen, now, is_new=False)
                if is_first_approval:
                    _report_confirmation(session, chosen, now)
                # Pin after a rollback, so that the next study does not undo it.
                row.is_pinned = row.is_pinned or action is not UserDecision.APPROVE
                recorded_action = _ACTION_OF[action]
            case _:
                assert_never(action)
        row.version += 1
        record_decision(session, row, chosen, recorded_action, by, request.note, now)
        if recorded_action is DecisionAction.APPROVED:
            notify(session, EventType.BEST_REPLACED, chosen, now)
        session.flush()
        log.info(
            "best configuration %s",
            recorded_action,
            extra={"target_key": target_key, "recommendation": chosen.id, "by": by.name, "key": by.key_id},
        )
        return idempotency.answer(session, recommendation_view(chosen))


def list_recommendations(
    context: Context,
    target_key: str | None,
    states: tuple[RecommendationState, ...],
    token: str | None,
    limit: int,
) -> RecommendationPage:
    """Recommendations of the projects visible to the sender, newest first."""
    project_id = context.principal.project_id
    filters = (project_id, target_key, *states)
    after = paging.parse_token(token, filters, paging.moment_and_id)
    with context.db.read() as session:
        rows = history.recommendations(session, project_id, target_key, states, after, limit + 1)
        page_rows, next_token = paging.split_page(
            rows, limit, filters, lambda row: [row.created_at.isoformat(), row.id]
        )
        return RecommendationPage(
            recommendations=tuple(map(recommendation_view, page_rows)), next_page_token=next_token
        )


def list_decisions(
    context: Context, target_key: str, token: str | None, limit: int, project_id: str | None
) -> tuple[DecisionPage, str]:
    """Decisions about a tuning target (model, workload, cluster), newest first, and the entity tag of the target."""
    project_id = project_of(context, project_id)
    filters = (project_id, target_key)
    after = paging.parse_token(token, filters, paging.whole_number)
    with context.db.read() as session:
        case = best.get_target(session, project_id, target_key)
        if case is None:
            raise unknown_target(target_key)
        rows = history.decisions(session, project_id, target_key, after, limit + 1)
        page_rows, next_token = paging.split_page(rows, limit, filters, lambda row: row.id)
        # A decision under an old key concerns the target that superseded it.
        current = best.current_target(session, project_id, target_key) or case
        return DecisionPage(decisions=tuple(map(_decision_view, page_rows)), next_page_token=next_token), target_tag(
            current
        )


def target_tag(row: TuningTargetRow) -> str:
    """Entity tag of a tuning target (model, workload, cluster), which changes with every decision about the target."""
    return f'"{row.target_key}-{row.version}"'


def recommendation_view(row: RecommendationRow) -> Recommendation:
    """Convert a recommendation's row into the API's model."""
    return Recommendation(
        recommendation_id=row.id,
        project_id=row.project_id,
        target_key=row.target_key,
        study_id=row.study_id,
        state=row.state,
        answer=row.answer,
        created_at=row.created_at,
    )


def _report_confirmation(session: Session, approved: RecommendationRow, now: datetime) -> None:
    """Store what an approved study measured on a target cluster in the projection (prediction for that cluster) that
    it tests. Before the approval, the study's results do not count there.
    """
    study = studies.get(session, approved.study_id)
    if study is not None:
        report_confirmation(session, study, approved.answer.result, now)


def _choose(
    session: Session, row: TuningTargetRow, action: UserDecision, request: DecisionRequest
) -> RecommendationRow:
    """Find the recommendation that a decision applies to: the one that the request names, else the only one that the
    decision can mean, such as the proposal for `approve`.
    """
    recommendation: RecommendationRow | None
    if request.recommendation_id is not None:
        recommendation = best.recommendation(session, request.recommendation_id)
        if recommendation is None or (recommendation.project_id, recommendation.target_key) != (
            row.project_id,
            row.target_key,
        ):
            message = f"recommendation_id ({request.recommendation_id}) is not one of this target_key"
            raise NotFound("unknown_recommendation", message, api_remedy="GET /v1/recommendations lists them")
        return recommendation
    # Without an id: the action itself says which one is meant.
    if action in (UserDecision.APPROVE, UserDecision.REJECT):
        recommendation = proposals.newest_proposal(session, row.project_id, row.target_key)
    elif action is UserDecision.ROLLBACK:
        recommendation = history.previous_recommendation(session, row)
    else:
        recommendation = row.recommended
    if recommendation is None:
        raise Conflict("nothing_to_decide", f"there is nothing to {action} under {row.target_key}; see its history")
    return recommendation


def _check_is_current(row: TuningTargetRow, chosen: RecommendationRow) -> None:
    """Check that the recommendation to unpin is the target's present one, which is the only one that can be pinned.

    Raises:
        Conflict: it is another one, such as one that was replaced since the sender read it.
    """
    if row.recommended is None or chosen.id != row.recommended.id:
        current = "none" if row.recommended is None else row.recommended.id
        raise Conflict(
            "nothing_to_decide",
            f"recommendation_id ({chosen.id}) is not the present recommendation ({current}), so it is not pinned; name "
            "the present one, or leave it out",
        )


def _decision_view(row: DecisionRow) -> Decision:
    return Decision(
        at=row.created_at,
        action=row.action,
        recommendation_id=row.recommendation_id,
        by=row.by,
        key_id=row.key_id,
        note=row.note,
    )
