"""An answer or the study that will know: what `POST /v1/best:resolve` does."""

from sqlalchemy.exc import IntegrityError

from shardtune.api_schemas.recommendations.best import BestConfig, Resolved, ResolveRequest
from shardtune.api_schemas.recommendations.tuning_targets import Case
from shardtune.api_schemas.studies.study import StudyState
from shardtune.db.queries import best
from shardtune.service.best import lookup, pending_approval
from shardtune.service.http.errors import Conflict, Invalid, NotFound
from shardtune.service.http.idempotent_requests import ALWAYS, Once
from shardtune.service.process.context import Context
from shardtune.service.recommendations.record import project_of
from shardtune.service.studies import create_and_read
from shardtune.service.studies.choose_precision import choose_precision, stated_precision
from shardtune.service.studies.placement import placed
from shardtune.service.workers import compatibility, registry


def resolve(
    context: Context, request: ResolveRequest, once: Once = ALWAYS, project_id: str | None = None
) -> tuple[Resolved, int]:
    """What is known, with 200; else the study that will know, with 202: one that runs already, or a new one.

    Raises:
        Invalid: nothing is known, and no worker offers the cluster.
        NotFound: there is an answer, and it waits for approval.
        Conflict: the last study of this case failed, and another would, too; or its answer was rejected.
    """
    try:
        return _resolve(context, request, once, project_of(context, project_id))
    except Invalid as nobody:
        known = _known(context, request, project_of(context, project_id)) if nobody.code == "no_worker" else None
        if known is None:
            raise
        return _kept(context, once, Resolved(best=known), 200)


def _known(context: Context, request: ResolveRequest, project_id: str) -> BestConfig | None:
    """What is served where nobody could measure just now: hosts that come and go are gone when a platform asks again."""
    study = request.study
    precision, _ = stated_precision(study)
    workload = study.workload if precision is None else study.workload.model_copy(update={"precision": precision})
    lowest = request.lowest_confidence if request.accept_nearest else None
    try:
        cases = lookup.cases_of(context, study.model, workload, compatibility.named_cluster(study), project_id)
        return lookup.by_case(context, cases, lowest, project_id)
    except NotFound as nothing:
        if nothing.code == "awaits_approval":
            raise
    except Invalid:
        # `local` without a worker and without an answer: the first rejection says so.
        pass
    return None


def _resolve(context: Context, request: ResolveRequest, once: Once, project_id: str) -> tuple[Resolved, int]:
    with context.db.read() as session:
        live = registry.live(context, session, project_id)
        cluster, _ = placed(request.study, live)
        precision, _ = choose_precision(request.study, compatibility.dtypes_of(cluster, live))
        case = Case(request.study.model, request.study.workload.with_precision(precision), cluster)
        lowest = request.lowest_confidence if request.accept_nearest else None
        found = lookup.find(context, session, project_id, case, lowest)
        waiting = None if found else pending_approval.rejection(pending_approval.proposed(session, project_id, [case]))
    if found is not None:
        return _kept(context, once, Resolved(best=found), 200)
    if waiting is not None:
        raise waiting
    running = _running(context, project_id, case)
    if running is not None:
        return _kept(context, once, running, 202)
    try:
        study = create_and_read.create(
            context, request.study, once, None, project_id, resolve_key=case.target_key_without_fingerprint
        )
    except (Conflict, IntegrityError):
        running = _running(context, project_id, case)
        if running is None:
            raise
        return _kept(context, once, running, 202)
    return Resolved(study=study), 202


def _kept(context: Context, once: Once, resolved: Resolved, status: int) -> tuple[Resolved, int]:
    """The answer, stored where its request has a name."""
    if once.key is not None:
        with once.write(context) as session:
            once.answer(session, resolved, status)
    return resolved, status


def _running(context: Context, project_id: str, case: Case) -> Resolved | None:
    with context.db.read() as session:
        last = best.last_resolving(session, project_id, case.target_key_without_fingerprint)
        if last is None:
            return None
        if last.state is StudyState.FAILED:
            raise Conflict(
                "study_failed",
                f"study {last.id} of this case failed: {last.reason}; remove the cause and create a study yourself",
            )
        if last.state is StudyState.COMPLETE and not best.standing_of(session, last.id):
            raise Conflict(
                "answer_rejected",
                f"the answer of study {last.id} of this case was rejected; approve it (GET /v1/recommendations has its id), "
                "or delete the study, and another one is started",
            )
        if last.state.is_open or last.state is StudyState.COMPLETE:
            return Resolved(study=create_and_read.read_models(session, [last])[0])
    return None
