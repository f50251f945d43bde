"""Routes of API keys and projects."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from shardtune.api_schemas.access.keys import (
    PROJECT_PATTERN,
    ApiKey,
    ApiKeyPage,
    KeyCreated,
    KeySpec,
    Project,
    ProjectPage,
    ProjectSpec,
    RotateRequest,
)
from shardtune.service.access import manage_keys, projects
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http import etags
from shardtune.service.http.error_codes import problems
from shardtune.service.http.etags import IfMatchParam
from shardtune.service.http.idempotent_requests import IdempotencyDep
from shardtune.service.http.paging import LimitParam, PageTokenParam
from shardtune.service.process.context import ContextDep

router = APIRouter(prefix="/v1", tags=["keys"])

READ = [requires(Action.READ_KEYS)]

ProjectIdParam = Annotated[str, Path(pattern=PROJECT_PATTERN)]


@router.post("/keys", dependencies=[requires(Action.CREATE_KEY)], status_code=201)
def create_key(context: ContextDep, spec: KeySpec, once: IdempotencyDep) -> KeyCreated:
    """Create an API key. Only this response contains the key's secret; the service stores a hash."""
    return manage_keys.create(context, spec, once)


@router.get("/keys", dependencies=READ, responses=problems("invalid_page_token"))
def list_keys(context: ContextDep, limit: LimitParam = 50, page_token: PageTokenParam = None) -> ApiKeyPage:
    """List API keys without their secrets, newest first."""
    return manage_keys.list_keys(context, page_token, limit)


@router.post(
    "/keys/{key_id}:rotate",
    dependencies=[requires(Action.ROTATE_KEY)],
    status_code=201,
    responses=problems("unknown_key", "key_revoked"),
)
def rotate_key(
    context: ContextDep, key_id: str, once: IdempotencyDep, request: RotateRequest = RotateRequest()
) -> KeyCreated:
    """Replace an API key by one with the same name, project and scopes; the old secret stays valid for `grace_s`
    seconds.
    """
    return manage_keys.rotate(context, key_id, request, once)


@router.post("/keys/{key_id}:revoke", dependencies=[requires(Action.REVOKE_KEY)], responses=problems("unknown_key"))
def revoke_key(context: ContextDep, key_id: str, once: IdempotencyDep) -> ApiKey:
    """Revoke an API key at once."""
    return manage_keys.revoke(context, key_id, once)


@router.get("/projects", dependencies=READ, responses=problems("invalid_page_token"))
def list_projects(context: ContextDep, limit: LimitParam = 50, page_token: PageTokenParam = None) -> ProjectPage:
    """List projects with their quotas, by id."""
    return projects.list_projects(context, page_token, limit)


@router.get(
    "/projects/{project_id}",
    dependencies=READ,
    responses=problems("unknown_project") | etags.UNCHANGED,
    response_model=Project,
)
def read_project(
    context: ContextDep, project_id: ProjectIdParam, request: Request, response: Response
) -> Project | Response:
    """Read one project with its quotas."""
    project = projects.read(context, project_id)
    return etags.set_etag(request, response, project) or project


@router.put(
    "/projects/{project_id}", dependencies=[requires(Action.SET_PROJECT)], responses=problems("precondition_failed")
)
def put_project(
    context: ContextDep,
    project_id: ProjectIdParam,
    spec: ProjectSpec,
    response: Response,
    if_match: IfMatchParam = None,
) -> Project:
    """Set a project's quotas, and whether its results need approval; creates the project if it does not exist."""
    project = projects.put_project(context, project_id, spec, if_match)
    response.headers["ETag"] = etags.tag_of(project)
    return project
