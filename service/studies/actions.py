"""What a person does to a study: pause, resume, cancel, clone. More budget for it is service.studies.extension."""

import logging

from shardtune.api_schemas.studies.study import Study, StudyState
from shardtune.api_schemas.studies.study_changes import CloneRequest
from shardtune.db.queries import studies
from shardtune.service.access import quotas
from shardtune.service.http import etags
from shardtune.service.http.errors import Conflict
from shardtune.service.http.idempotent_requests import ALWAYS, Once
from shardtune.service.lifecycle import advance, transitions
from shardtune.service.process.context import Context
from shardtune.service.studies import create_and_read as rules
from shardtune.service.studies.create_and_read import must_exist, read_models

log = logging.getLogger(__name__)


def cancel(context: Context, study_id: str, once: Once = ALWAYS, if_match: str | None = None) -> Study:
    """End a study and take its runs from their workers; a cancelled study stays as it is.

    Raises:
        Conflict: it has ended otherwise.
        PreconditionFailed: it is not what the sender saw.
    """
    with once.write(context) as session:
        must_exist(context, session, study_id)
        row = studies.lock(session, study_id)
        etags.check(if_match, read_models(session, [row])[0])
        if row.state.is_open:
            transitions.end_study(session, row, StudyState.CANCELLED, "cancelled by its user", context.now())
            log.info("study cancelled", extra={"study": study_id})
        elif row.state is not StudyState.CANCELLED:
            raise Conflict(
                "study_ended", f"study {study_id} is {row.state.value}; only a running study can be cancelled"
            )
        session.flush()
        return once.answer(session, read_models(session, [row])[0])


def pause(context: Context, study_id: str, paused: bool, once: Once = ALWAYS, if_match: str | None = None) -> Study:
    """Stop giving out runs of a study, or go on with it.

    Raises:
        Conflict: it has ended.
        PreconditionFailed: it is not what the sender saw.
        TooMany: going on would break a quota of its project.
    """
    with once.write(context) as session:
        found = must_exist(context, session, study_id)
        if not paused and found.state is StudyState.PAUSED:
            quotas.admit_study(session, found.project_id, context.now())
        row = studies.lock(session, study_id)
        etags.check(if_match, read_models(session, [row])[0])
        if not row.state.is_open:
            raise Conflict("study_ended", f"study {study_id} is {row.state.value}; create a new one")
        if row.state is StudyState.WAITING:
            raise Conflict("study_waiting", f"study {study_id} waits for a worker and runs nothing; cancel it")
        transitions.pause_study(row, paused)
        session.flush()
        log.info("study paused" if paused else "study resumed", extra={"study": study_id})
        study = once.answer(session, read_models(session, [row])[0])
    if not paused:
        advance.advance(context, study_id)
    return study


def clone(
    context: Context,
    study_id: str,
    request: CloneRequest,
    once: Once = ALWAYS,
    new_id: str | None = None,
    project_id: str | None = None,
) -> Study:
    """A new study with another one's spec, changed as asked for, in the same project unless another is named.

    Nothing but the spec is taken over: the trials are run anew.

    Raises:
        NotFound: there is no such study.
        ServiceError: as a creation.
    """
    with context.db.read() as session:
        row = must_exist(context, session, study_id)
        spec, project_id = request.applied_to(row.spec), project_id or row.project_id
    return rules.create(context, spec, once, new_id, project_id)
