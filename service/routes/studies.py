"""Routes of studies."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from shardtune.api_schemas.access.keys import PROJECT_PATTERN
from shardtune.api_schemas.studies.exports import Export, ExportFormat
from shardtune.api_schemas.studies.insights import Importance, ParetoFront
from shardtune.api_schemas.studies.study import Study, StudyPage
from shardtune.api_schemas.studies.study_changes import CloneRequest, Extension
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.trial import RejectionPage, TrialPage, TrialState
from shardtune.db.queries.studies import StudyFilter
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http import etags
from shardtune.service.http.error_codes import problems
from shardtune.service.http.etags import IfMatchParam
from shardtune.service.http.idempotent_requests import IdempotencyDep
from shardtune.service.http.paging import LimitParam, PageTokenParam
from shardtune.service.http.timestamps import Timestamp
from shardtune.service.process.context import ContextDep
from shardtune.service.studies import actions, create_and_read, deletion, extension, insights
from shardtune.service.studies.results import export_config, study_result

router = APIRouter(prefix="/v1/studies", tags=["studies"])

READ = [requires(Action.READ_STUDIES)]
# A lower-case DNS label: an id becomes part of folder names and of `project.study` ids.
STUDY_ID_PATTERN = r"^[a-z0-9][a-z0-9-]{1,30}[a-z0-9]$"
_UNKNOWN = problems("unknown_study")
_CHANGED = problems("unknown_study", "study_ended", "precondition_failed")

_CREATED = (
    "unknown_project",
    "study_exists",
    "no_worker",
    "unknown_model_type",
    "model_not_allowed",
    "quota_running_studies",
    "quota_gpu_seconds",
    "hub_unreachable",
)

StudyIdParam = Annotated[str, Path(description="Id of the study.")]
ProjectParam = Annotated[
    str | None,
    Query(alias="project", pattern=PROJECT_PATTERN, description="Id of a project, for keys that see every project."),
]


@router.post("", status_code=201, dependencies=[requires(Action.CREATE_STUDY)], responses=problems(*_CREATED))
def create_study(
    context: ContextDep,
    spec: StudyRequest,
    once: IdempotencyDep,
    response: Response,
    study_id: Annotated[
        str | None,
        Query(
            pattern=STUDY_ID_PATTERN,
            description="Id of your choice, prefixed by its project's (`team-a.nightly`); generated if omitted.",
        ),
    ] = None,
    project: ProjectParam = None,
) -> Study:
    """Create a study, which starts as soon as a worker requests work.

    With `wait_for_worker_s`, a study without a suitable worker waits for one, and `GET /v1/demand` lists the hardware
    that the study needs.
    """
    study = create_and_read.create_study(context, spec, once, study_id, project)
    response.headers["Location"] = f"/v1/studies/{study.study_id}"
    response.headers["ETag"] = etags.tag_of(study)
    return study


@router.get("", dependencies=READ, responses=problems("invalid_page_token"))
def list_studies(
    context: ContextDep,
    state: Annotated[list[StudyState] | None, Query(description="Only studies in these states.")] = None,
    created_from: Annotated[Timestamp | None, Query(description="Only studies created at this time or later.")] = None,
    created_before: Annotated[Timestamp | None, Query(description="Only studies created before this time.")] = None,
    project: ProjectParam = None,
    deleted: Annotated[bool, Query(description="List deleted studies instead of the others.")] = False,
    order: Literal["newest", "oldest"] = "newest",
    limit: LimitParam = 50,
    page_token: PageTokenParam = None,
) -> StudyPage:
    """List studies, sorted by time of creation."""
    study_filter = StudyFilter(project, tuple(sorted(set(state or ()))), created_from, created_before, deleted)
    return create_and_read.list_studies(context, study_filter, order == "oldest", page_token, limit)


@router.get("/{study_id}", dependencies=READ, responses=_UNKNOWN | etags.UNCHANGED, response_model=Study)
def read_study(context: ContextDep, study_id: StudyIdParam, request: Request, response: Response) -> Study | Response:
    """Read one study in its present state."""
    study = create_and_read.read_study(context, study_id)
    return etags.set_etag(request, response, study) or study


@router.delete(
    "/{study_id}",
    dependencies=[requires(Action.DELETE_STUDY)],
    responses=problems("unknown_study", "made_by_service", "precondition_failed"),
)
def delete_study(
    context: ContextDep,
    study_id: StudyIdParam,
    withdraw: Annotated[
        bool,
        Query(
            description="Withdraw its recommendation; the previous one takes its place. Otherwise the recommendation stays. "
            "One that an administrator has pinned or approved needs the scope `admin`."
        ),
    ] = False,
    if_match: IfMatchParam = None,
) -> Study:
    """Remove a study from all lists, and cancel its runs. The study can still be read by its id, and restored by
    `:undelete`.
    """
    return deletion.delete(context, study_id, withdraw, if_match)


@router.post(
    "/{study_id}:undelete",
    dependencies=[requires(Action.UNDELETE_STUDY)],
    responses=problems("unknown_study", "precondition_failed"),
)
def undelete_study(
    context: ContextDep, study_id: StudyIdParam, once: IdempotencyDep, if_match: IfMatchParam = None
) -> Study:
    """Restore a deleted study. A withdrawn recommendation stays withdrawn until a person approves it."""
    return deletion.undelete(context, study_id, once, if_match)


@router.post("/{study_id}:cancel", dependencies=[requires(Action.CANCEL_STUDY)], responses=_CHANGED)
def cancel_study(
    context: ContextDep, study_id: StudyIdParam, once: IdempotencyDep, if_match: IfMatchParam = None
) -> Study:
    """End a study; its workers stop at their next heartbeat."""
    return actions.cancel(context, study_id, once, if_match)


@router.post(
    "/{study_id}:pause",
    dependencies=[requires(Action.PAUSE_STUDY)],
    responses=_CHANGED | problems("unknown_study", "study_ended", "study_waiting"),
)
def pause_study(
    context: ContextDep, study_id: StudyIdParam, once: IdempotencyDep, if_match: IfMatchParam = None
) -> Study:
    """Stop leasing runs of a study; runs that execute already may finish."""
    return actions.pause(context, study_id, True, once, if_match)


@router.post(
    "/{study_id}:resume",
    dependencies=[requires(Action.RESUME_STUDY)],
    responses=_CHANGED | problems("study_changed", "quota_running_studies", "quota_gpu_seconds"),
)
def resume_study(
    context: ContextDep, study_id: StudyIdParam, once: IdempotencyDep, if_match: IfMatchParam = None
) -> Study:
    """Resume a paused study."""
    return actions.pause(context, study_id, False, once, if_match)


@router.post(
    "/{study_id}:extend",
    dependencies=[requires(Action.EXTEND_STUDY)],
    responses=problems(
        "unknown_study",
        "study_ended",
        "nothing_to_extend",
        "made_by_service",
        "study_deleted",
        "precondition_failed",
        "no_worker",
        "quota_running_studies",
        "quota_gpu_seconds",
    ),
)
def extend_study(
    context: ContextDep, study_id: StudyIdParam, body: Extension, once: IdempotencyDep, if_match: IfMatchParam = None
) -> Study:
    """Raise a study's budget, even if the study has ended: it continues from its trials, and its result is determined
    again.
    """
    return extension.extend(context, study_id, body, once, if_match)


@router.post(
    "/{study_id}:clone",
    status_code=201,
    dependencies=[requires(Action.CLONE_STUDY)],
    responses=problems("unknown_study", *_CREATED),
)
def clone_study(
    context: ContextDep,
    study_id: StudyIdParam,
    once: IdempotencyDep,
    response: Response,
    body: CloneRequest = CloneRequest(),
    new_id: Annotated[
        str | None, Query(pattern=STUDY_ID_PATTERN, description="Id of the new study; generated if omitted.")
    ] = None,
    project: ProjectParam = None,
) -> Study:
    """Create a study from another study's spec, with some fields replaced; nothing else is copied."""
    study = actions.clone(context, study_id, body, once, new_id, project)
    response.headers["Location"] = f"/v1/studies/{study.study_id}"
    response.headers["ETag"] = etags.tag_of(study)
    return study


@router.get("/{study_id}/trials", dependencies=READ, responses=_UNKNOWN | problems("invalid_page_token"))
def list_trials(
    context: ContextDep,
    study_id: StudyIdParam,
    state: Annotated[list[TrialState] | None, Query(description="Only trials in these states.")] = None,
    limit: LimitParam = 100,
    page_token: PageTokenParam = None,
) -> TrialPage:
    """List a study's trials by number, with runs, attempts, measurements and reasons."""
    return create_and_read.list_trials(context, study_id, tuple(sorted(set(state or ()))), page_token, limit)


@router.get("/{study_id}/rejections", dependencies=READ, responses=_UNKNOWN | problems("invalid_page_token"))
def list_rejections(
    context: ContextDep, study_id: StudyIdParam, limit: LimitParam = 100, page_token: PageTokenParam = None
) -> RejectionPage:
    """List configurations of a study that the memory gate rejected (predicted not to fit), each with the reason."""
    return create_and_read.list_rejections(context, study_id, page_token, limit)


@router.get("/{study_id}/pareto", dependencies=READ, responses=_UNKNOWN)
def read_pareto_front(context: ContextDep, study_id: StudyIdParam) -> ParetoFront:
    """List the fastest trial of a study for each amount of memory (Pareto front)."""
    return insights.pareto_front(context, study_id)


@router.get("/{study_id}/importance", dependencies=READ, responses=_UNKNOWN)
def read_importance(context: ContextDep, study_id: StudyIdParam) -> Importance:
    """Read the importance of each parameter for the speed of a study's trials (PED-ANOVA); `reason` if there are too
    few trials.
    """
    return insights.knob_importance(context, study_id)


@router.get("/{study_id}/best", dependencies=READ, responses=problems("unknown_study", "study_unfinished"))
def read_best(context: ContextDep, study_id: StudyIdParam) -> StudyResult:
    """Read the result of a complete study. Answers 409 with the study's state before the study is complete."""
    return study_result.read_result(context, study_id)


@router.get(
    "/{study_id}/export",
    dependencies=READ,
    responses=problems("unknown_study", "unknown_trial", "study_unfinished", "trial_unmeasured"),
)
def export_study(
    context: ContextDep,
    study_id: StudyIdParam,
    which: str = "best",
    form: Annotated[ExportFormat, Query(alias="format")] = "standard",
) -> Export:
    """Read the ready-to-use configuration files of one configuration of a study: the recommended one (`best`), its
    `baseline`, the one projected to its `target`, or the trial with the given number.
    """
    return export_config.export_as(context, study_id, which, form)
