"""Check the quotas of a project: number of running studies, and GPU-seconds per day."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from shardtune.api_schemas.access.keys import Quotas
from shardtune.db.queries import costs, keys
from shardtune.service.http.errors import NotFound, TooManyRequests

# Nobody knows when a study ends, so this is only a reasonable interval.
_STUDY_RETRY_S = 60
"""Seconds sent as Retry-After to a client whose project has the maximum number of running studies."""


def check_study_quota(session: Session, project_id: str, now: datetime) -> None:
    """Check that a project may run one more study. The project's row stays locked until the transaction ends, so that
    two requests cannot both become the last study that the quota allows.

    Raises:
        NotFound: the project does not exist.
        TooMany: a quota is used up.
    """
    row = keys.lock_project(session, project_id)
    if row is None:
        raise NotFound("unknown_project", f"project ({project_id}) does not exist; PUT /v1/projects/{project_id} first")
    rejection = why_no_study(session, project_id, row.quotas, now)
    if rejection is not None:
        raise rejection


def why_no_study(session: Session, project_id: str, quotas: Quotas, now: datetime) -> TooManyRequests | None:
    """Error with which the service rejects one more running study of a project; None if its quotas allow it."""
    limit = quotas.running_studies
    if limit is not None and keys.running_studies(session, project_id) >= limit:
        return TooManyRequests(
            "quota_running_studies",
            f"project ({project_id}) may run {limit} studies at once; wait for one to end, pause or cancel one",
            _STUDY_RETRY_S,
        )
    if is_exhausted(session, project_id, quotas, now):
        return TooManyRequests(
            "quota_gpu_seconds",
            f"project ({project_id}) has used its {quotas.gpu_seconds_per_day:g} GPU-seconds of today (UTC); "
            "try again tomorrow, or raise the quota",
            (_midnight(now) + timedelta(days=1) - now).total_seconds(),
        )
    return None


@dataclass(frozen=True)
class QuotaUse:
    """Quotas of a project, and how much of each is used at the moment."""

    quotas: Quotas
    running_studies: int
    gpu_seconds_today: float
    """GPU-seconds of the project's attempts at runs: those that ended since midnight UTC, and those that run now."""


def quota_use(session: Session, project_id: str, now: datetime) -> QuotaUse | None:
    """Quotas of a project and how much of each is used; None if the project does not exist."""
    row = keys.project(session, project_id)
    if row is None:
        return None
    return QuotaUse(row.quotas, keys.running_studies(session, project_id), _spent(session, project_id, now))


def quota_use_if_limited(session: Session, project_id: str, now: datetime) -> QuotaUse | None:
    """Quotas of a project and how much of each is used; None if the project does not exist, or it has no limits."""
    # Without a limit the day's attempts need not be added up.
    row = keys.project(session, project_id)
    is_limited = row is not None and row.quotas.limits_use
    return quota_use(session, project_id, now) if is_limited else None


def is_exhausted(session: Session, project_id: str, quotas: Quotas, now: datetime) -> bool:
    """Whether a project has used up its GPU-seconds of the day."""
    limit = quotas.gpu_seconds_per_day
    return limit is not None and _spent(session, project_id, now) >= limit


def _spent(session: Session, project_id: str, now: datetime) -> float:
    # Running attempts, too: any number of workers could otherwise start runs until the first one ends.
    ended = keys.gpu_seconds_since(session, project_id, _midnight(now))
    return ended + costs.running_gpu_seconds(session, project_id, now)


def _midnight(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)
