"""What finished studies recommend, which of it is served, and what people decide about that.

A new answer is served at once where nothing is served yet or it is faster than what is (both measured on one fingerprint),
unless the project (or the operator, for all) demands approval or somebody pinned the present one: then it waits as a proposal.
"""

import logging
import secrets
from collections.abc import Callable
from datetime import datetime

from sqlalchemy.orm import Session

from api_schemas.best import (
    Answer,
    Decision,
    DecisionPage,
    DecisionRequest,
    Recommendation,
    RecommendationPage,
    RecommendationState,
)
from db import best
from db.best_rows import BestRow, DecisionRow, RecommendationRow
from db.rows import StudyRow
from service import paging
from service.context import Context
from service.errors import Conflict, NotFound
from service.idempotency import ALWAYS, Once
from service.subjects import Subject

log = logging.getLogger(__name__)

_SERVICE = "service"


def propose(context: Context, session: Session, study: StudyRow, now: datetime) -> None:
    """Take in the answer of a study that has ended by `now`. The caller holds the study."""
    assert study.result is not None and study.fingerprint is not None
    subject = Subject(study.spec.model, study.spec.workload, study.cluster)
    fingerprint = study.fingerprint.value
    row = best.put(
        session,
        study.project_id,
        subject.study_key(fingerprint),
        now,
        shape_key=subject.shape_key,
        model_key=subject.model_key,
        model_type=subject.model_type,
        device=study.cluster.device,
    )
    found = RecommendationRow(
        id=f"rec-{secrets.token_hex(8)}",
        project_id=study.project_id,
        study_key=row.study_key,
        study_id=study.id,
        state=RecommendationState.PROPOSED,
        answer=Answer(
            model=study.spec.model,
            workload=study.spec.workload,
            cluster=study.cluster,
            fingerprint=fingerprint,
            result=study.result,
        ),
        created_at=now,
    )
    session.add(found)
    session.flush()
    _decide(session, row, found, "proposed", _SERVICE, None, now)
    row.version += 1
    if context.settings.requires_approval or study.project.requires_approval or row.is_pinned:
        return
    if row.serving is None or row.serving.study_id == study.id or _speed(found) > _speed(row.serving):
        _serve(session, row, found, now)
        _decide(session, row, found, "served", _SERVICE, None, now)
    else:
        found.state = RecommendationState.RETIRED
        _decide(session, row, found, "kept", _SERVICE, f"{row.serving.id} is faster", now)


def decide(
    context: Context,
    study_key: str,
    action: str,
    request: DecisionRequest,
    once: Once = ALWAYS,
    project_id: str | None = None,
    check: Callable[[BestRow], None] = lambda _: None,
) -> Recommendation:
    """Pin, unpin, approve, reject or roll back; returns the recommendation it is about.

    `check` sees the case under its lock and may raise.

    Raises:
        NotFound: nothing is known under the key, or no such recommendation.
        Conflict: the state of things leaves nothing to decide.
    """
    now, by = context.now(), context.principal.name
    with once.write(context) as session:
        row = best.lock(session, project_of(context, project_id), study_key)
        if row is None:
            raise unknown_key(study_key)
        check(row)
        chosen = _chosen(session, row, action, request)
        match action:
            case "unpin":
                row.is_pinned = False
                done = "unpinned"
            case "reject":
                if chosen.state is not RecommendationState.PROPOSED:
                    raise Conflict(
                        "nothing_to_decide", f"{chosen.id} is {chosen.state.value}; only proposals can be rejected"
                    )
                chosen.state = RecommendationState.REJECTED
                done = "rejected"
            case _:
                _serve(session, row, chosen, now)
                # Whoever rolls back does not want the next study to undo it.
                row.is_pinned = row.is_pinned or action in ("pin", "rollback")
                done = {"pin": "pinned", "approve": "approved", "rollback": "rolled_back"}[action]
        row.version += 1
        _decide(session, row, chosen, done, by, request.note, now)
        session.flush()
        log.info("best configuration %s", done, extra={"study_key": study_key, "recommendation": chosen.id, "by": by})
        return once.answer(session, view(chosen))


def page(
    context: Context,
    study_key: str | None,
    states: tuple[RecommendationState, ...],
    token: str | None,
    limit: int,
) -> RecommendationPage:
    """Recommendations of the sender's projects, newest first."""
    only = context.principal.project_id
    filters = (only, study_key, *states)
    after = paging.start(token, filters, paging.moment_and_id)
    with context.db.read() as session:
        rows = best.recommendations(session, only, study_key, states, after, limit + 1)
        shown, following = paging.cut(rows, limit, filters, lambda row: [row.created_at.isoformat(), row.id])
        return RecommendationPage(recommendations=tuple(map(view, shown)), next_page_token=following)


def history(
    context: Context, study_key: str, token: str | None, limit: int, project_id: str | None
) -> tuple[DecisionPage, str]:
    """Every decision about a case, newest first, and the case's tag."""
    project_id = project_of(context, project_id)
    filters = (project_id, study_key)
    after = paging.start(token, filters, paging.whole_number)
    with context.db.read() as session:
        case = best.served(session, project_id, study_key)
        if case is None:
            raise unknown_key(study_key)
        rows = best.decisions(session, project_id, study_key, after, limit + 1)
        shown, following = paging.cut(rows, limit, filters, lambda row: row.id)
        return DecisionPage(decisions=tuple(map(_decision, shown)), next_page_token=following), tag_of(case)


def tag_of(row: BestRow) -> str:
    """An entity tag that changes with everything that is decided about a case."""
    return f'"{row.study_key}-{row.version}"'


def adopt_earlier(context: Context) -> None:
    """Recommend what studies found before there were recommendations."""
    with context.db.write() as session:
        for study in best.unrecommended(session):
            if study.result is not None and study.fingerprint is not None:
                propose(context, session, study, study.finished_at or context.now())


def project_of(context: Context, named: str | None) -> str:
    """The project asked about.

    Raises:
        NotFound: it is not the sender's.
    """
    project_id = named or context.principal.home
    if not context.principal.sees(project_id):
        raise NotFound("unknown_project", f"project ({project_id}) is not the key's; leave it out")
    return project_id


def unknown_key(study_key: str) -> NotFound:
    """Nothing was ever measured under this key."""
    return NotFound("unknown_best", f"study_key ({study_key}) has no answer; POST /v1/best:resolve starts a study")


def view(row: RecommendationRow) -> Recommendation:
    """A recommendation as users read it."""
    return Recommendation(
        recommendation_id=row.id,
        project_id=row.project_id,
        study_key=row.study_key,
        study_id=row.study_id,
        state=row.state,
        answer=row.answer,
        created_at=row.created_at,
    )


def _chosen(session: Session, row: BestRow, action: str, request: DecisionRequest) -> RecommendationRow:
    """The recommendation a decision is about."""
    found: RecommendationRow | None
    if request.recommendation_id is not None:
        found = best.recommendation(session, request.recommendation_id)
        if found is None or (found.project_id, found.study_key) != (row.project_id, row.study_key):
            message = f"recommendation_id ({request.recommendation_id}) is not one of this study_key"
            raise NotFound("unknown_recommendation", f"{message}; GET /v1/recommendations lists them")
        return found
    if action in ("approve", "reject"):
        found = best.newest_proposal(session, row.project_id, row.study_key)
    elif action == "rollback":
        found = best.served_before(session, row)
    else:
        found = row.serving
    if found is None:
        raise Conflict("nothing_to_decide", f"there is nothing to {action} under {row.study_key}; see its history")
    return found


def _serve(session: Session, row: BestRow, found: RecommendationRow, now: datetime) -> None:
    if row.serving is not None and row.serving.id != found.id:
        row.serving.state = RecommendationState.RETIRED
    found.state = RecommendationState.SERVING
    row.serving, row.serving_id, row.updated_at = found, found.id, now
    row.freshness, row.changed_fields, row.fingerprint_key = "fresh", [], found.answer.fingerprint.content_key()
    row.stale_since, row.stale_told_at, row.stale_told_for = None, None, []
    row.version += 1
    session.flush()


def note_decision(
    session: Session, row: BestRow, found: RecommendationRow, action: str, note: str, now: datetime
) -> None:
    """Keep in the history what the service itself has found."""
    _decide(session, row, found, action, _SERVICE, note, now)


def _decide(
    session: Session, row: BestRow, found: RecommendationRow, action: str, by: str, note: str | None, now: datetime
) -> None:
    session.add(
        DecisionRow(
            project_id=row.project_id,
            study_key=row.study_key,
            recommendation_id=found.id,
            action=action,
            by=by,
            note=note,
            created_at=now,
        )
    )


def _decision(row: DecisionRow) -> Decision:
    return Decision.model_validate(
        {
            "at": row.created_at,
            "action": row.action,
            "recommendation_id": row.recommendation_id,
            "by": row.by,
            "note": row.note,
        }
    )


def _speed(row: RecommendationRow) -> float:
    return row.answer.result.best.tokens_per_s_per_gpu
