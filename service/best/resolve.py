"""Find a recommendation, or start the study that will produce one (`POST /v1/best:resolve`)."""

from sqlalchemy.exc import IntegrityError

from shardtune.api_schemas.recommendations.best import BestConfig, Resolved, ResolveRequest
from shardtune.api_schemas.recommendations.tuning_targets import TuningTarget
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.db.queries import best
from shardtune.db.queries.recommendations import study_recommendations
from shardtune.service.best import lookup, pending_approval
from shardtune.service.best.busy_answers import reject_too_busy
from shardtune.service.http.errors import Conflict, Invalid, NotFound, invalid
from shardtune.service.http.idempotent_requests import NO_KEY, IdempotencyKey
from shardtune.service.hub import named_models
from shardtune.service.process.context import Context
from shardtune.service.recommendations.record import project_of
from shardtune.service.studies import create_and_read
from shardtune.service.studies.choose_precision import choose_precision, stated_precision
from shardtune.service.studies.placement import place_study
from shardtune.service.workers import registry, study_clusters


def resolve(
    context: Context, request: ResolveRequest, idempotency: IdempotencyKey = NO_KEY, project_id: str | None = None
) -> tuple[Resolved, int]:
    """Return the present recommendation (status 200), or else the running or new study that will produce one (status
    202).

    Raises:
        Invalid: there is no recommendation, and no worker has the cluster.
        NotFound: a recommendation waits for approval.
        Conflict: the last study of this target failed, as a new one would, its result was rejected, or its machine
            was too busy.
    """
    if request.study.target is not None:
        shown = request.study.target.short_form
        raise invalid(
            "study.target",
            shown,
            f"study.target ({shown}) is nothing that resolve can wait for: it answers for the cluster that a study measures; "
            "create the study with POST /v1/studies, and read GET /v1/best with projections=true",
        )
    request = request.model_copy(update={"study": named_models.with_config_of(context, request.study)})
    try:
        # Tried after the rejection: hosts that come and go may be gone when a platform asks again.
        return _resolve_with_worker(context, request, idempotency, project_of(context, project_id))
    except Invalid as error:
        best_config = (
            _find_without_worker(context, request, project_of(context, project_id))
            if error.code == "no_worker"
            else None
        )
        if best_config is None:
            raise
        return _store_answer(context, idempotency, Resolved(best=best_config), 200)


def _find_without_worker(context: Context, request: ResolveRequest, project_id: str) -> BestConfig | None:
    """Find the present recommendation for a request whose cluster no live worker has; None if there is no
    recommendation.
    """
    study = request.study
    precision, _ = stated_precision(study)
    workload = study.workload if precision is None else study.workload.model_copy(update={"precision": precision})
    try:
        cases = lookup.targets_of(context, study.model, workload, study_clusters.named_cluster(study), project_id)
        return lookup.find_by_target(
            context, cases, request.lowest_confidence, project_id, is_exact=not request.accept_nearest
        )
    except NotFound as not_found:
        if not_found.code == "awaits_approval":
            raise
    except Invalid:
        # `local` without a worker or recommendation: the caller raises the first rejection, which says so.
        pass
    return None


def _resolve_with_worker(
    context: Context, request: ResolveRequest, idempotency: IdempotencyKey, project_id: str
) -> tuple[Resolved, int]:
    with context.db.read() as session:
        live = registry.live_workers(context, session, project_id)
        cluster, _ = place_study(request.study, live)
        precision, _ = choose_precision(request.study, study_clusters.dtypes_of(cluster, live))
        case = TuningTarget(request.study.model, request.study.workload.with_precision(precision), cluster)
        lowest = request.lowest_confidence if request.accept_nearest else None
        best_config = lookup.find_in_session(context, session, project_id, case, lowest)
        awaits_approval = (
            None
            if best_config
            else pending_approval.awaits_approval(pending_approval.newest_proposal(session, project_id, [case]))
        )
    if best_config is not None:
        # Rejected, not measured again: a platform that keeps asking would start one study after the other.
        reject_too_busy(context, best_config, request.lowest_confidence)
        return _store_answer(context, idempotency, Resolved(best=best_config), 200)
    if awaits_approval is not None:
        raise awaits_approval
    running_study = _find_running_study(context, project_id, case)
    if running_study is not None:
        return _store_answer(context, idempotency, running_study, 202)
    try:
        study = create_and_read.create_study(
            context, request.study, idempotency, None, project_id, resolve_key=case.target_key_without_fingerprint
        )
    # Another request created the study between the check and the insert: the unique `resolve_key` let one through.
    except (Conflict, IntegrityError):
        running_study = _find_running_study(context, project_id, case)
        if running_study is None:
            raise
        return _store_answer(context, idempotency, running_study, 202)
    return Resolved(study=study), 202


def _store_answer(
    context: Context, idempotency: IdempotencyKey, resolved: Resolved, status: int
) -> tuple[Resolved, int]:
    """Store the response under the request's Idempotency-Key, if there is one, and return the response."""
    if idempotency.key is not None:
        with idempotency.write(context) as session:
            idempotency.answer(session, resolved, status)
    return resolved, status


def _find_running_study(context: Context, project_id: str, case: TuningTarget) -> Resolved | None:
    with context.db.read() as session:
        last_study = best.last_resolving_study(session, project_id, case.target_key_without_fingerprint)
        if last_study is None:
            return None
        # Not retried automatically: a study that failed for its spec would fail again for every request of a platform.
        if last_study.state is StudyState.FAILED:
            raise Conflict(
                "study_failed",
                f"study {last_study.id} of this tuning target failed: {last_study.reason}; remove the cause and create a study yourself",
            )
        if last_study.state is StudyState.COMPLETE and not study_recommendations.active_recommendations(
            session, last_study.id
        ):
            raise Conflict(
                "answer_rejected",
                f"the result of study {last_study.id} of this tuning target was rejected; approve it (GET /v1/recommendations has its id), "
                "or delete the study, so that the next request starts another",
            )
        if last_study.state.is_open or last_study.state is StudyState.COMPLETE:
            return Resolved(study=create_and_read.study_views(session, [last_study])[0])
    return None
