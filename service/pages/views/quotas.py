"""Quotas of projects, and their use."""

from dataclasses import dataclass

from shardtune.api_schemas.access.keys import Project
from shardtune.service.access import projects
from shardtune.service.access.quotas import QuotaUse, quota_use, quota_use_if_limited
from shardtune.service.process.context import Context
from shardtune.service.wording import study_words

_MOST = 200
"""Maximum number of projects that the page shows; the REST API lists all."""


@dataclass(frozen=True)
class ProjectLine:
    """One project with the studies that it runs now and the GPU time that it has used today."""

    project: Project
    studies: str
    gpu_time: str
    is_used_up: bool


def lines(context: Context) -> list[ProjectLine]:
    """Return the projects that the sender of the request may see, each with its running studies and its GPU time of
    today."""
    visible = projects.list_projects(context, None, _MOST).projects
    now = context.now()
    with context.db.read() as session:
        uses = {project.project_id: quota_use(session, project.project_id, now) for project in visible}
    return [_project_line(project, use) for project in visible if (use := uses[project.project_id]) is not None]


def own_usage(context: Context) -> str:
    """Describe in a sentence how many studies the sender's own project runs and how much GPU time it has used today;
    empty if the project has no limit."""
    with context.db.read() as session:
        use = quota_use_if_limited(session, context.principal.home, context.now())
    if use is None:
        return ""
    return f"Project {context.principal.home}: {_studies(use)} running; {_gpu_time(use)} used today (UTC)."


def _project_line(project: Project, use: QuotaUse) -> ProjectLine:
    quotas = use.quotas
    is_full = quotas.running_studies is not None and use.running_studies >= quotas.running_studies
    is_spent = quotas.gpu_seconds_per_day is not None and use.gpu_seconds_today >= quotas.gpu_seconds_per_day
    return ProjectLine(project, _studies(use), _gpu_time(use), is_full or is_spent)


def _studies(use: QuotaUse) -> str:
    limit = use.quotas.running_studies
    return f"{use.running_studies}{f' of {limit}' if limit is not None else ''} studies"


def _gpu_time(use: QuotaUse) -> str:
    limit, spent = use.quotas.gpu_seconds_per_day, study_words.duration(use.gpu_seconds_today)
    return f"{spent} of GPU time" if limit is None else f"{spent} of {study_words.duration(limit)} of GPU time"
