"""Quotas of a project: running studies, and GPU-seconds per day."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from shardtune.api_schemas.access.keys import Quotas
from shardtune.db.queries import keys
from shardtune.service.http.errors import NotFound, TooManyRequests

# Nobody knows when a study ends, so this is only a reasonable interval.
_STUDY_RETRY_S = 60
"""Seconds after which a client may ask again for a running study."""


def check_study_quota(session: Session, project_id: str, now: datetime) -> None:
    """Check that one more study may run. The project stays locked, so that two requests cannot both take the last
    place.

    Raises:
        NotFound: the project does not exist.
        TooMany: a quota is used up.
    """
    row = keys.lock_project(session, project_id)
    if row is None:
        raise NotFound("unknown_project", f"project ({project_id}) does not exist; PUT /v1/projects/{project_id} first")
    limit = row.quotas.running_studies
    if limit is not None and keys.running_studies(session, project_id) >= limit:
        raise TooManyRequests(
            "quota_running_studies",
            f"project ({project_id}) may run {limit} studies at once; wait for one to end, pause or cancel one",
            _STUDY_RETRY_S,
        )
    if is_exhausted(session, project_id, row.quotas, now):
        raise TooManyRequests(
            "quota_gpu_seconds",
            f"project ({project_id}) has used its {row.quotas.gpu_seconds_per_day:g} GPU-seconds of today (UTC); "
            "try again tomorrow, or raise the quota",
            (_midnight(now) + timedelta(days=1) - now).total_seconds(),
        )


@dataclass(frozen=True)
class QuotaUse:
    """A project's quotas and its use of them."""

    quotas: Quotas
    running_studies: int
    gpu_seconds_today: float
    """GPU-seconds since midnight UTC."""


def quota_use(session: Session, project_id: str, now: datetime) -> QuotaUse | None:
    """Use of a project's quotas; None: the project does not exist."""
    row = keys.project(session, project_id)
    if row is None:
        return None
    spent = keys.gpu_seconds_since(session, project_id, _midnight(now))
    return QuotaUse(row.quotas, keys.running_studies(session, project_id), spent)


def quota_use_if_limited(session: Session, project_id: str, now: datetime) -> QuotaUse | None:
    """Use of a project's quotas; None: the project does not exist, or nothing is limited."""
    # Without a limit the day's attempts need not be added up.
    row = keys.project(session, project_id)
    is_limited = row is not None and row.quotas.limits_use
    return quota_use(session, project_id, now) if is_limited else None


def is_exhausted(session: Session, project_id: str, quotas: Quotas, now: datetime) -> bool:
    """Whether the project's GPU-seconds of the day are used up."""
    limit = quotas.gpu_seconds_per_day
    return limit is not None and keys.gpu_seconds_since(session, project_id, _midnight(now)) >= limit


def _midnight(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)
