"""What people decide about recommendations: pin, unpin, approve, reject, roll back; and what was recommended and decided."""

import logging
from collections.abc import Callable
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
from shardtune.db.queries import best
from shardtune.db.tables.best import DecisionRow, RecommendationRow, TuningTargetRow
from shardtune.service.http import paging
from shardtune.service.http.errors import Conflict, NotFound
from shardtune.service.http.idempotent_requests import ALWAYS, Once
from shardtune.service.process.context import Context
from shardtune.service.recommendations.record import note_decision, notify, project_of, serve, unknown_key

log = logging.getLogger(__name__)

_SERVED_BY = {
    UserDecision.PIN: DecisionAction.PINNED,
    UserDecision.APPROVE: DecisionAction.APPROVED,
    UserDecision.ROLLBACK: DecisionAction.ROLLED_BACK,
}


def decide(
    context: Context,
    target_key: str,
    action: UserDecision,
    request: DecisionRequest,
    once: Once = ALWAYS,
    project_id: str | None = None,
    check: Callable[[TuningTargetRow], None] = lambda _: None,
) -> Recommendation:
    """Pin, unpin, approve, reject or roll back; returns the recommendation it is about.

    `check` sees the case under its lock and may raise.

    Raises:
        NotFound: nothing is known under the key, or no such recommendation.
        Conflict: the state of things leaves nothing to decide.
    """
    now, by = context.now(), context.principal.name
    with once.write(context) as session:
        known = best.current(session, project_of(context, project_id), target_key)
        row = best.lock(session, known.project_id, known.target_key) if known is not None else None
        if row is None:
            raise unknown_key(target_key)
        check(row)
        chosen = _chosen(session, row, action, request)
        match action:
            case UserDecision.UNPIN:
                row.is_pinned = False
                done = DecisionAction.UNPINNED
            case UserDecision.REJECT:
                if chosen.state is not RecommendationState.PROPOSED:
                    raise Conflict(
                        "nothing_to_decide", f"{chosen.id} is {chosen.state.value}; only proposals can be rejected"
                    )
                chosen.state = RecommendationState.REJECTED
                done = DecisionAction.REJECTED
            case UserDecision.PIN | UserDecision.APPROVE | UserDecision.ROLLBACK:
                serve(session, row, chosen, now, is_new=False)
                # Whoever rolls back does not want the next study to undo it.
                row.is_pinned = row.is_pinned or action is not UserDecision.APPROVE
                done = _SERVED_BY[action]
            case _:
                assert_never(action)
        row.version += 1
        note_decision(session, row, chosen, done, by, request.note, now)
        if done is DecisionAction.APPROVED:
            notify(session, EventType.BEST_REPLACED, chosen, now)
        session.flush()
        log.info("best configuration %s", done, extra={"target_key": target_key, "recommendation": chosen.id, "by": by})
        return once.answer(session, view(chosen))


def page(
    context: Context,
    target_key: str | None,
    states: tuple[RecommendationState, ...],
    token: str | None,
    limit: int,
) -> RecommendationPage:
    """Recommendations of the sender's projects, newest first."""
    only = context.principal.project_id
    filters = (only, target_key, *states)
    after = paging.start(token, filters, paging.moment_and_id)
    with context.db.read() as session:
        rows = best.recommendations(session, only, target_key, states, after, limit + 1)
        shown, following = paging.cut(rows, limit, filters, lambda row: [row.created_at.isoformat(), row.id])
        return RecommendationPage(recommendations=tuple(map(view, shown)), next_page_token=following)


def history(
    context: Context, target_key: str, token: str | None, limit: int, project_id: str | None
) -> tuple[DecisionPage, str]:
    """Every decision about a case, newest first, and the case's tag."""
    project_id = project_of(context, project_id)
    filters = (project_id, target_key)
    after = paging.start(token, filters, paging.whole_number)
    with context.db.read() as session:
        case = best.served(session, project_id, target_key)
        if case is None:
            raise unknown_key(target_key)
        rows = best.decisions(session, project_id, target_key, after, limit + 1)
        shown, following = paging.cut(rows, limit, filters, lambda row: row.id)
        # What is decided by an old key is decided about the case that superseded it.
        current = best.current(session, project_id, target_key) or case
        return DecisionPage(decisions=tuple(map(_decision, shown)), next_page_token=following), tag_of(current)


def tag_of(row: TuningTargetRow) -> str:
    """An entity tag that changes with everything that is decided about a case."""
    return f'"{row.target_key}-{row.version}"'


def view(row: RecommendationRow) -> Recommendation:
    """A recommendation as users read it."""
    return Recommendation(
        recommendation_id=row.id,
        project_id=row.project_id,
        target_key=row.target_key,
        study_id=row.study_id,
        state=row.state,
        answer=row.answer,
        created_at=row.created_at,
    )


def _chosen(
    session: Session, row: TuningTargetRow, action: UserDecision, request: DecisionRequest
) -> RecommendationRow:
    """The recommendation a decision is about."""
    found: RecommendationRow | None
    if request.recommendation_id is not None:
        found = best.recommendation(session, request.recommendation_id)
        if found is None or (found.project_id, found.target_key) != (row.project_id, row.target_key):
            message = f"recommendation_id ({request.recommendation_id}) is not one of this target_key"
            raise NotFound("unknown_recommendation", f"{message}; GET /v1/recommendations lists them")
        return found
    if action in (UserDecision.APPROVE, UserDecision.REJECT):
        found = best.newest_proposal(session, row.project_id, row.target_key)
    elif action is UserDecision.ROLLBACK:
        found = best.served_before(session, row)
    else:
        found = row.serving
    if found is None:
        raise Conflict("nothing_to_decide", f"there is nothing to {action} under {row.target_key}; see its history")
    return found


def _decision(row: DecisionRow) -> Decision:
    return Decision(
        at=row.created_at, action=row.action, recommendation_id=row.recommendation_id, by=row.by, note=row.note
    )
