"""Read and change projects and their limits."""

import logging

from shardtune.api_schemas.access.keys import Project, ProjectPage, ProjectSpec
from shardtune.api_schemas.retuning.retunes import RetunePolicy
from shardtune.db.queries import keys
from shardtune.db.tables.access import ProjectRow
from shardtune.service.http import etags, paging
from shardtune.service.http.errors import Forbidden, NotFound, PreconditionFailed
from shardtune.service.process.context import Context

log = logging.getLogger(__name__)


def list_projects(context: Context, token: str | None, limit: int) -> ProjectPage:
    """Projects visible to the sender, sorted by id."""
    project_id = context.principal.project_id
    after = paging.parse_token(token, [project_id], str)
    with context.db.read() as session:
        rows = keys.projects(session, project_id, after, limit + 1)
        page_rows, next_token = paging.split_page(rows, limit, [project_id], lambda row: row.id)
        return ProjectPage(projects=tuple(project_view(row) for row in page_rows), next_page_token=next_token)


def read(context: Context, project_id: str) -> Project:
    with context.db.read() as session:
        row = keys.project(session, project_id) if context.principal.sees(project_id) else None
        if row is None:
            message = f"project {project_id} does not exist"
            raise NotFound("unknown_project", message, api_remedy="GET /v1/projects lists them")
        return project_view(row)


def put_project(context: Context, project_id: str, spec: ProjectSpec, if_match: str | None = None) -> Project:
    """Set the limits of a project; creates the project if it does not exist.

    Raises:
        Forbidden: the sender's API key is restricted to one project.
        PreconditionFailed: the project has changed since the sender read it.
    """
    # A key bound to a project must not raise its own project's limits.
    if context.principal.project_id is not None:
        raise Forbidden("scope_missing", f"key {context.principal.name} is bound to a project and cannot set limits")
    with context.db.write() as session:
        if if_match is not None and keys.project(session, project_id) is None:
            raise PreconditionFailed(
                "precondition_failed",
                f"If-Match ({if_match:.200}) names a version of project {project_id}, which does not exist; leave it out to "
                "create the project",
            )
        row = keys.put_project(session, project_id, context.now())
        # Compared while the row is locked: two administrators who change the same version cannot both succeed.
        etags.check(if_match, project_view(row))
        row.quotas, row.requires_approval, row.retuning = spec.quotas, spec.requires_approval, spec.retuning
        log.info("project set", extra={"project": project_id})
        return project_view(row)


def project_view(row: ProjectRow) -> Project:
    """Convert a project's database row into the API's model."""
    return Project(
        project_id=row.id,
        quotas=row.quotas,
        requires_approval=row.requires_approval,
        retuning=row.retuning or RetunePolicy(),
        created_at=row.created_at,
    )
