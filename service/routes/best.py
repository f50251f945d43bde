"""Routes of recommended configurations and decisions."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.convertors import StringConvertor, register_url_convertor

from shardtune.api_schemas.recommendations.best import (
    BestConfig,
    ConfidenceLevel,
    DecisionPage,
    DecisionRequest,
    Recommendation,
    RecommendationPage,
    RecommendationState,
    Resolved,
    ResolveRequest,
    UserDecision,
)
from shardtune.db.tables.best import TuningTargetRow
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.best import lookup, resolve
from shardtune.service.http import etags, file_formats
from shardtune.service.http.error_codes import problems
from shardtune.service.http.errors import invalid
from shardtune.service.http.etags import IfMatchParam
from shardtune.service.http.file_formats import FormatParam
from shardtune.service.http.idempotent_requests import IdempotencyDep
from shardtune.service.http.paging import LimitParam, PageTokenParam
from shardtune.service.process.context import ContextDep
from shardtune.service.recommendations import decisions, record
from shardtune.service.routes import best_query
from shardtune.service.routes.studies import ProjectParam


class _Decisions(StringConvertor):
    """URL convertor for paths such as `/v1/best:pin`: it matches the names of decisions after the colon.
    `/v1/best:history` and unknown words are left to other routes, so that a POST to them is answered with 405 and
    404.
    """

    regex = "|".join(UserDecision)


register_url_convertor("decision", _Decisions())
router = APIRouter(prefix="/v1", tags=["best"])

READ = [requires(Action.READ_BEST)]
_STARTED: dict[int | str, dict[str, Any]] = {
    202: {"model": Resolved, "description": "A study runs that will give the recommendation"}
}

OptionalKeyParam = Annotated[str | None, Query(pattern=r"^[0-9a-f]{32}$")]
TargetKeyParam = Annotated[
    str, Query(pattern=r"^[0-9a-f]{32}$", description="Key of a tuning target, from an earlier response.")
]


@router.get(
    "/best",
    dependencies=READ,
    response_model=BestConfig,
    responses=problems("unknown_best", "awaits_approval", "unknown_project", "unknown_file")
    | problems("not_acceptable", "no_worker", "too_busy")
    | problems("hub_unreachable")
    | file_formats.FILES
    | etags.UNCHANGED,
)
def read_best_config(
    context: ContextDep,
    request: Request,
    response: Response,
    target_key: OptionalKeyParam = None,
    model: best_query.ModelParam = None,
    cluster: best_query.ClusterParam = None,
    workload: best_query.WorkloadParam = None,
    match: best_query.MatchParam = "nearest",
    lowest_confidence: best_query.LowestConfidenceParam = ConfidenceLevel.MEDIUM,
    format: FormatParam = None,
    projections: best_query.ProjectionsParam = False,
    project: ProjectParam = None,
) -> BestConfig | Response:
    """Read the recommended configuration for a `target_key`, or for model, cluster and workload. Starts no study and
    changes nothing.
    """
    if target_key is not None:
        best_config = lookup.find_by_key(context, target_key, lowest_confidence, project)
    else:
        targets = lookup.targets_of(context, *best_query.parse_target(model, cluster, workload), project)
        best_config = lookup.find_by_target(
            context,
            targets,
            lowest_confidence,
            project,
            is_exact=match == "exact",
            accepts_projections=projections,
        )
    # Counted in memory: a GET that wrote a row would wait for other writers.
    context.usage_counts.add(record.project_of(context, project), best_config.target_key)
    form = file_formats.requested_format(request, response, format)
    tag = lookup.tag_of(best_config)
    if form == file_formats.JSON:
        return etags.set_etag(request, response, best_config, tag) or best_config
    return file_formats.file_response(
        request, response, best_config, tag, lookup.export_files(context, best_config), form
    )


@router.post(
    "/best:resolve",
    dependencies=[requires(Action.RESOLVE_BEST)],
    responses=_STARTED
    | problems(
        "unknown_project",
        "awaits_approval",
        "no_worker",
        "unknown_model_type",
        "model_not_allowed",
        "study_failed",
        "answer_rejected",
        "quota_running_studies",
        "quota_gpu_seconds",
        "hub_unreachable",
    ),
)
def resolve_best_config(
    context: ContextDep, body: ResolveRequest, response: Response, once: IdempotencyDep, project: ProjectParam = None
) -> Resolved:
    """Read the recommendation for model, cluster and workload (200), or start the study that will produce it (202),
    unless such a study runs already.
    """
    resolved, response.status_code = resolve.resolve(context, body, once, project)
    if resolved.study is not None:
        response.headers["Location"] = f"/v1/studies/{resolved.study.study_id}"
    return resolved


@router.get("/recommendations", dependencies=READ, responses=problems("invalid_page_token"))
def list_recommendations(
    context: ContextDep,
    target_key: OptionalKeyParam = None,
    state: Annotated[list[RecommendationState] | None, Query()] = None,
    limit: LimitParam = 50,
    page_token: PageTokenParam = None,
) -> RecommendationPage:
    """List recommended configurations of studies, newest first; `state=proposed` selects those that wait for
    approval.
    """
    states = tuple(sorted(set(state or ())))
    return decisions.list_recommendations(context, target_key, states, page_token, limit)


@router.get(
    "/best:history", dependencies=READ, responses=problems("unknown_best", "unknown_project", "invalid_page_token")
)
def list_decisions(
    context: ContextDep,
    target_key: TargetKeyParam,
    response: Response,
    limit: LimitParam = 50,
    page_token: PageTokenParam = None,
    project: ProjectParam = None,
) -> DecisionPage:
    """List all decisions about a tuning target (model, workload, cluster), by the service and by users, newest first.
    Each decision changes the ETag.
    """
    page, response.headers["ETag"] = decisions.list_decisions(context, target_key, page_token, limit, project)
    return page


@router.post(
    "/best:{action:decision}",
    dependencies=[requires(Action.DECIDE_ON_BEST)],
    responses=problems(
        "unknown_best", "unknown_project", "unknown_recommendation", "nothing_to_decide", "precondition_failed"
    ),
)
def decide_on_best(
    context: ContextDep,
    action: UserDecision,
    once: IdempotencyDep,
    target_key: Annotated[
        str | None, Query(pattern=r"^[0-9a-f]{32}$", description="Key of a tuning target; here or in the body.")
    ] = None,
    body: DecisionRequest = DecisionRequest(),
    project: ProjectParam = None,
    if_match: IfMatchParam = None,
) -> Recommendation:
    """Pin or unpin a recommendation, approve or reject a proposal, or roll back to the previous one (and pin it).

    `If-Match`: the ETag of `GET /v1/best?target_key=` or of `GET /v1/best:history`.
    """

    def is_unchanged(row: TuningTargetRow) -> None:
        lookup.check_unchanged(context, row, if_match)

    return decisions.decide(context, _one_key(target_key, body.target_key), action, body, once, project, is_unchanged)


def _one_key(in_query: str | None, in_body: str | None) -> str:
    if in_query is not None and in_body is not None and in_query != in_body:
        raise invalid(
            "target_key", in_body, f"target_key ({in_body}) is another one in the query ({in_query}); give one"
        )
    target_key = in_query or in_body
    if target_key is None:
        raise invalid("target_key", None, "target_key is required; give it in the query or in the body")
    return target_key
