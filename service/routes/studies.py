"""Studies over HTTP."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from shardtune.api_schemas.access.keys import PROJECT_PATTERN
from shardtune.api_schemas.studies.exports import Export, ExportFormat
from shardtune.api_schemas.studies.insights import Importance, ParetoFront
from shardtune.api_schemas.studies.study import Study, StudyPage, StudyRequest, StudyResult, StudyState
from shardtune.api_schemas.studies.study_changes import CloneRequest, Extension
from shardtune.api_schemas.trials.trial import RejectionPage, TrialPage, TrialState
from shardtune.db.queries.studies import StudyFilter
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http import etags
from shardtune.service.http.error_codes import problems
from shardtune.service.http.etags import InIfMatch
from shardtune.service.http.idempotent_requests import InOnce
from shardtune.service.http.paging import InLimit, InPageToken
from shardtune.service.http.timestamps import Moment
from shardtune.service.process.context import InContext
from shardtune.service.studies import actions, create_and_read, deletion, extension, insights

router = APIRouter(prefix="/v1/studies", tags=["studies"])

READ = [requires(Action.READ_STUDIES)]
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
)

InStudyId = Annotated[str, Path(description="A study's id.")]
InProject = Annotated[
    str | None, Query(alias="project", pattern=PROJECT_PATTERN, description="For keys that see every project.")
]


@router.post("", status_code=201, dependencies=[requires(Action.CREATE_STUDY)], responses=problems(*_CREATED))
def create_study(
    context: InContext,
    spec: StudyRequest,
    once: InOnce,
    response: Response,
    study_id: Annotated[
        str | None,
        Query(
            pattern=STUDY_ID_PATTERN,
            description="An id of your choice, which its project's goes before (`team-a.nightly`); made up without one.",
        ),
    ] = None,
    project: InProject = None,
) -> Study:
    """Create a study; it starts as soon as a worker asks for work. With `wait_for_worker_s` one for which no worker is there
    waits for it, and `GET /v1/demand` says what it needs."""
    study = create_and_read.create(context, spec, once, study_id, project)
    response.headers["Location"] = f"/v1/studies/{study.study_id}"
    response.headers["ETag"] = etags.of(study)
    return study


@router.get("", dependencies=READ, responses=problems("invalid_page_token"))
def list_studies(
    context: InContext,
    state: Annotated[list[StudyState] | None, Query(description="Only these states.")] = None,
    created_from: Annotated[Moment | None, Query(description="Created at this moment or later.")] = None,
    created_before: Annotated[Moment | None, Query(description="Created before this moment.")] = None,
    project: InProject = None,
    deleted: Annotated[bool, Query(description="Those that were deleted, instead of the others.")] = False,
    order: Literal["newest", "oldest"] = "newest",
    limit: InLimit = 50,
    page_token: InPageToken = None,
) -> StudyPage:
    """Studies by time of creation."""
    wanted = StudyFilter(project, tuple(sorted(set(state or ()))), created_from, created_before, deleted)
    return create_and_read.page(context, wanted, order == "oldest", page_token, limit)


@router.get("/{study_id}", dependencies=READ, responses=_UNKNOWN | etags.UNCHANGED, response_model=Study)
def read_study(context: InContext, study_id: InStudyId, request: Request, response: Response) -> Study | Response:
    """One study as it stands."""
    study = create_and_read.read(context, study_id)
    return etags.respond(request, response, study) or study


@router.delete(
    "/{study_id}",
    dependencies=[requires(Action.DELETE_STUDY)],
    responses=problems("unknown_study", "made_by_service", "precondition_failed"),
)
def delete_study(
    context: InContext,
    study_id: InStudyId,
    withdraw: Annotated[
        bool,
        Query(description="Its answer is served no longer, but what was served before. Else what is served stays."),
    ] = False,
    if_match: InIfMatch = None,
) -> Study:
    """Leave a study out of all lists; what runs of it is cancelled. It can be read by its id, and taken back by `:undelete`."""
    return deletion.delete(context, study_id, withdraw, if_match)


@router.post(
    "/{study_id}:undelete",
    dependencies=[requires(Action.UNDELETE_STUDY)],
    responses=problems("unknown_study", "precondition_failed"),
)
def undelete_study(context: InContext, study_id: InStudyId, once: InOnce, if_match: InIfMatch = None) -> Study:
    """Show a deleted study again. A withdrawn answer stays withdrawn until somebody approves it."""
    return deletion.undelete(context, study_id, once, if_match)


@router.post("/{study_id}:cancel", dependencies=[requires(Action.CANCEL_STUDY)], responses=_CHANGED)
def cancel_study(context: InContext, study_id: InStudyId, once: InOnce, if_match: InIfMatch = None) -> Study:
    """End a study; its workers stop at their next heartbeat."""
    return actions.cancel(context, study_id, once, if_match)


@router.post(
    "/{study_id}:pause",
    dependencies=[requires(Action.PAUSE_STUDY)],
    responses=_CHANGED | problems("unknown_study", "study_ended", "study_waiting"),
)
def pause_study(context: InContext, study_id: InStudyId, once: InOnce, if_match: InIfMatch = None) -> Study:
    """Give out no more runs of a study; those that run may finish."""
    return actions.pause(context, study_id, True, once, if_match)


@router.post(
    "/{study_id}:resume",
    dependencies=[requires(Action.RESUME_STUDY)],
    responses=_CHANGED | problems("quota_running_studies", "quota_gpu_seconds"),
)
def resume_study(context: InContext, study_id: InStudyId, once: InOnce, if_match: InIfMatch = None) -> Study:
    """Go on with a paused study."""
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
    context: InContext, study_id: InStudyId, body: Extension, once: InOnce, if_match: InIfMatch = None
) -> Study:
    """Raise a study's budget, also when it has ended: it goes on from its trials, and its verdict is renewed."""
    return extension.extend(context, study_id, body, once, if_match)


@router.post(
    "/{study_id}:clone",
    status_code=201,
    dependencies=[requires(Action.CLONE_STUDY)],
    responses=problems("unknown_study", *_CREATED),
)
def clone_study(
    context: InContext,
    study_id: InStudyId,
    once: InOnce,
    response: Response,
    body: CloneRequest = CloneRequest(),
    new_id: Annotated[
        str | None, Query(pattern=STUDY_ID_PATTERN, description="Of the new study; made up without one.")
    ] = None,
    project: InProject = None,
) -> Study:
    """A new study from another one's spec, with some of its fields replaced; nothing else is taken over."""
    study = actions.clone(context, study_id, body, once, new_id, project)
    response.headers["Location"] = f"/v1/studies/{study.study_id}"
    response.headers["ETag"] = etags.of(study)
    return study


@router.get("/{study_id}/trials", dependencies=READ, responses=_UNKNOWN | problems("invalid_page_token"))
def list_trials(
    context: InContext,
    study_id: InStudyId,
    state: Annotated[list[TrialState] | None, Query(description="Only these states.")] = None,
    limit: InLimit = 100,
    page_token: InPageToken = None,
) -> TrialPage:
    """The study's trials by number, with their runs, attempts, measurements and reasons."""
    return create_and_read.trial_page(context, study_id, tuple(sorted(set(state or ()))), page_token, limit)


@router.get("/{study_id}/rejections", dependencies=READ, responses=_UNKNOWN | problems("invalid_page_token"))
def list_rejections(
    context: InContext, study_id: InStudyId, limit: InLimit = 100, page_token: InPageToken = None
) -> RejectionPage:
    """Configurations the memory gate rejected, with the reason of each."""
    return create_and_read.rejection_page(context, study_id, page_token, limit)


@router.get("/{study_id}/pareto", dependencies=READ, responses=_UNKNOWN)
def read_pareto_front(context: InContext, study_id: InStudyId) -> ParetoFront:
    """The fastest trial for each amount of memory."""
    return insights.pareto_front(context, study_id)


@router.get("/{study_id}/importance", dependencies=READ, responses=_UNKNOWN)
def read_importance(context: InContext, study_id: InStudyId) -> Importance:
    """Which knobs mattered for speed (PED-ANOVA); `reason` where too few trials tell."""
    return insights.knob_importance(context, study_id)


@router.get("/{study_id}/best", dependencies=READ, responses=problems("unknown_study", "study_unfinished"))
def read_best(context: InContext, study_id: InStudyId) -> StudyResult:
    """The answer of a complete study; 409 with its state before."""
    return create_and_read.best(context, study_id)


@router.get(
    "/{study_id}/export",
    dependencies=READ,
    responses=problems("unknown_study", "unknown_trial", "study_unfinished", "trial_unmeasured"),
)
def export_study(
    context: InContext,
    study_id: InStudyId,
    which: str = "best",
    form: Annotated[ExportFormat, Query(alias="format")] = "standard",
) -> Export:
    """Files of `best`, of `baseline`, or of a trial by its number."""
    return create_and_read.export_as(context, study_id, which, form)
