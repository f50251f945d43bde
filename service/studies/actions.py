"""Actions of users on studies: pause, resume, cancel, clone. service.studies.extension raises budgets."""

import logging

from shardtune.api_schemas.studies.reasons import StudyReason, StudyReasonCode
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_changes import CloneRequest
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.db.queries import studies
from shardtune.service.access import quotas
from shardtune.service.http import etags
from shardtune.service.http.errors import Conflict
from shardtune.service.http.idempotent_requests import NO_KEY, IdempotencyKey
from shardtune.service.lifecycle import advance, known_answer, transitions
from shardtune.service.process.context import Context
from shardtune.service.studies import create_and_read as rules
from shardtune.service.studies.create_and_read import get_study, study_views

log = logging.getLogger(__name__)


def cancel(context: Context, study_id: str, idempotency: IdempotencyKey = NO_KEY, if_match: str | None = None) -> Study:
    """End a study and take its runs from their workers; an already cancelled study stays unchanged. A study whose
    answer is known completes without the optional runs that are left, such as its sustained run (one long run after the
    verdict).

    Raises:
        Conflict: the study has ended otherwise.
        PreconditionFailed: the study has changed since the sender read it.
    """
    # Planned before the transaction, which holds the study's row. Whether the sender may see the study is checked there.
    known = known_answer.find(context, study_id)
    with idempotency.write(context) as session:
        get_study(context, session, study_id)
        row = studies.lock(session, study_id)
        # Compared while the row is locked: nobody can change the study between the comparison and the end.
        etags.check(if_match, study_views(session, [row])[0])
        if row.state.is_open and known is not None and known_answer.complete(context, session, row, known):
            log.info("study cancelled, its answer is kept", extra={"study": study_id})
        elif row.state.is_open:
            reason = StudyReason(code=StudyReasonCode.CANCELLED, text="cancelled by its user")
            transitions.end_study(session, row, StudyState.CANCELLED, reason, context.now())
            log.info("study cancelled", extra={"study": study_id})
        elif row.state is not StudyState.CANCELLED:
            raise Conflict(
                "study_ended", f"study {study_id} is {row.state.value}; only a running study can be cancelled"
            )
        session.flush()
        return idempotency.answer(session, study_views(session, [row])[0])


def pause(
    context: Context, study_id: str, paused: bool, idempotency: IdempotencyKey = NO_KEY, if_match: str | None = None
) -> Study:
    """Stop leasing runs of a study, or resume the study.

    Raises:
        Conflict: the study has ended, or another request paused it meanwhile.
        PreconditionFailed: the study has changed since the sender read it.
        TooMany: resuming would break a quota of its project.
    """
    with idempotency.write(context) as session:
        study_row = get_study(context, session, study_id)
        # The project is locked before the study (note [lock order]), so the quota is checked first.
        checks_quota = not paused and study_row.state is StudyState.PAUSED
        if checks_quota:
            quotas.check_study_quota(session, study_row.project_id, context.now())
        row = studies.lock(session, study_id)
        etags.check(if_match, study_views(session, [row])[0])
        if not row.state.is_open:
            raise Conflict("study_ended", f"study {study_id} is {row.state.value}; create a new one")
        if row.state is StudyState.WAITING:
            raise Conflict("study_waiting", f"study {study_id} waits for a worker and runs nothing; cancel it")
        # The state was read before the lock; whether a quota applies depends on it.
        if not paused and row.state is StudyState.PAUSED and not checks_quota:
            message = f"study {study_id} was paused just now; read it again, and send the request again to resume it"
            raise Conflict("study_changed", message)
        transitions.pause_study(row, paused)
        session.flush()
        log.info("study paused" if paused else "study resumed", extra={"study": study_id})
        study = idempotency.answer(session, study_views(session, [row])[0])
    # Steps that need no worker were not taken while it was paused; after the commit, in transactions of their own.
    if not paused:
        advance.advance(context, study_id)
    return study


def clone(
    context: Context,
    study_id: str,
    request: CloneRequest,
    idempotency: IdempotencyKey = NO_KEY,
    new_id: str | None = None,
    project_id: str | None = None,
) -> Study:
    """Create a study from another study's spec with the requested changes, by default in the same project.

    Only the spec is copied: all trials run anew.

    Raises:
        NotFound: the study does not exist.
        ApiError: the same errors as for a new study.
    """
    with context.db.read() as session:
        row = get_study(context, session, study_id)
        spec, project_id = request.applied_to(row.spec), project_id or row.project_id
    return rules.create_study(context, spec, idempotency, new_id, project_id)
