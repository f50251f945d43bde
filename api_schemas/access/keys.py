"""Schemas of projects and their API keys. A key's secret is returned only once, in the response to its creation."""

from datetime import datetime
from enum import StrEnum

from pydantic import ConfigDict, Field, SecretStr, field_serializer

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import ONE_LINE
from shardtune.api_schemas.retuning.retunes import RetunePolicy

DEFAULT_PROJECT = "default"
"""Id of the project that owns everything created without an API key."""

PROJECT_PATTERN = r"^[a-z0-9][a-z0-9-]{0,31}$"


class Scope(StrEnum):
    """Permission of an API key; `admin` includes all other permissions."""

    STUDIES_READ = "studies:read"
    STUDIES_WRITE = "studies:write"
    CONFIGS_READ = "configs:read"
    WORKERS_LEASE = "workers:lease"
    METRICS_READ = "metrics:read"
    ADMIN = "admin"


class Quotas(Schema):
    """Limits on what one project may use. A limit that is None does not apply."""

    running_studies: int | None = Field(default=None, ge=0, le=1_000_000)
    """Maximum number of studies of the project that run at the same time; paused studies do not count."""
    gpu_seconds_per_day: float | None = Field(default=None, ge=0)
    """Maximum GPU-seconds (seconds × ranks) of the project's attempts at runs that have ended since midnight UTC. Once
    they are used up, no run starts until the next day."""
    requests_per_minute: int | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum number of requests per minute with any key of the project. Each process of the service counts separately.
    Requests of workers do not count."""

    @property
    def limits_use(self) -> bool:
        """Whether the quotas contain a limit on studies or on GPU-seconds. A limit on the rate of requests alone gives
        False."""
        return self.running_studies is not None or self.gpu_seconds_per_day is not None


class ProjectSpec(Schema):
    """Settings of a project."""

    quotas: Quotas = Quotas()
    requires_approval: bool = False
    """Whether a person must approve a new best configuration before it becomes the recommendation."""
    retuning: RetunePolicy = RetunePolicy()
    """Limits on when automatic retuning (repeated measurement of recommendations) may run, and on what it may cost."""


class Project(ProjectSpec):
    """Project as stored, with its settings and timestamps."""

    project_id: str
    created_at: datetime


class ProjectPage(Schema):
    """Page of projects, sorted by id."""

    projects: tuple[Project, ...]
    next_page_token: str | None = None


class KeySpec(Schema):
    """Settings of an API key to be created."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "team", "scopes": ["studies:read"]}]})

    name: str = Field(min_length=1, max_length=100, pattern=ONE_LINE)
    """Name of the API key, shown in the history of decisions made with the key."""
    scopes: tuple[Scope, ...] = Field(min_length=1, max_length=len(Scope))
    project_id: str | None = Field(default=None, pattern=PROJECT_PATTERN)
    """Project to which the API key is limited. If None, it is valid for all projects, as operators need it, and workers
    that serve all projects."""
    expires_in_days: float | None = Field(default=None, gt=0, le=3650)


class RotateRequest(Schema):
    """Request to replace an API key by a new one, which has the same name, project and scopes."""

    grace_s: float = Field(default=0, ge=0, le=30 * 86_400)
    """Seconds for which the old secret remains valid, so that clients can change to the new one at different times."""
    expires_in_days: float | None = Field(default=None, gt=0, le=3650)


class ApiKey(Schema):
    """API key as stored, without its secret."""

    key_id: str
    prefix: str
    """First characters of the key's secret, by which people can tell keys apart."""
    name: str
    project_id: str | None
    scopes: tuple[Scope, ...]
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """Time of the last request that was made with the API key, accurate to a few minutes."""
    revoked_at: datetime | None = None
    is_valid: bool


class ApiKeyPage(Schema):
    """Page of API keys, newest first."""

    keys: tuple[ApiKey, ...]
    next_page_token: str | None = None


class KeyCreated(Schema):
    """New API key with its secret, which is not shown again."""

    key: ApiKey
    secret: SecretStr | None
    """Secret of the API key. Only the first response contains it. If the same request is repeated with its
    Idempotency-Key, the secret is None. If it is lost, rotate the key."""

    @field_serializer("secret", when_used="json")
    def _shown_once(self, secret: SecretStr | None) -> str | None:
        return secret.get_secret_value() if secret is not None else None
