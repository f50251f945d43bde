"""Projects and the API keys that act for them, as a user reads them. A secret is in one answer only: that of its
creation."""

from datetime import datetime
from enum import StrEnum

from pydantic import ConfigDict, Field, SecretStr, field_serializer

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import ONE_LINE
from shardtune.api_schemas.retuning.retunes import RetunePolicy

DEFAULT_PROJECT = "default"
"""Project that owns everything created without keys."""

PROJECT_PATTERN = r"^[a-z0-9][a-z0-9-]{0,31}$"


class Scope(StrEnum):
    """Permission of a key. `admin` includes the others."""

    STUDIES_READ = "studies:read"
    STUDIES_WRITE = "studies:write"
    CONFIGS_READ = "configs:read"
    WORKERS_LEASE = "workers:lease"
    ADMIN = "admin"


class Quotas(Schema):
    """Limits of one project; None: no limit."""

    running_studies: int | None = Field(default=None, ge=0, le=1_000_000)
    """Studies that are running at once; paused ones do not count."""
    gpu_seconds_per_day: float | None = Field(default=None, ge=0)
    """Seconds × ranks of attempts that ended since midnight UTC. Beyond it no run is given out until the next day."""
    requests_per_minute: int | None = Field(default=None, ge=1, le=1_000_000)
    """Requests of all keys of the project, counted by each service process. Requests of workers do not count."""

    @property
    def limits_use(self) -> bool:
        """Whether the quotas limit studies or GPU-seconds, not only the rate of requests."""
        return self.running_studies is not None or self.gpu_seconds_per_day is not None


class ProjectSpec(Schema):
    """Settings of a project."""

    quotas: Quotas = Quotas()
    requires_approval: bool = False
    """Whether a new best configuration is recommended only after a person has approved it."""
    retuning: RetunePolicy = RetunePolicy()
    """Limits of automatic retuning: times and costs."""


class Project(ProjectSpec):
    """Project as stored."""

    project_id: str
    created_at: datetime


class ProjectPage(Schema):
    """Projects, sorted by id."""

    projects: tuple[Project, ...]
    next_page_token: str | None = None


class KeySpec(Schema):
    """API key to be created."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "team", "scopes": ["studies:read"]}]})

    name: str = Field(min_length=1, max_length=100, pattern=ONE_LINE)
    """Name of the key. It appears in the history of decisions made with it."""
    scopes: tuple[Scope, ...] = Field(min_length=1, max_length=len(Scope))
    project_id: str | None = Field(default=None, pattern=PROJECT_PATTERN)
    """Project that the key is limited to. None: every project, for the operator's own keys and for workers that
    serve all."""
    expires_in_days: float | None = Field(default=None, gt=0, le=3650)


class RotateRequest(Schema):
    """Request to replace a key by a new one of the same name, project and scopes."""

    grace_s: float = Field(default=0, ge=0, le=30 * 86_400)
    """Seconds for which the old secret stays valid, so that its users can be moved one by one."""
    expires_in_days: float | None = Field(default=None, gt=0, le=3650)


class ApiKey(Schema):
    """API key as stored: everything but its secret."""

    key_id: str
    prefix: str
    """Start of the secret, to tell keys apart."""
    name: str
    project_id: str | None
    scopes: tuple[Scope, ...]
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """Time of the last request with the key, exact to some minutes."""
    revoked_at: datetime | None = None
    is_valid: bool


class ApiKeyPage(Schema):
    """Keys, newest first."""

    keys: tuple[ApiKey, ...]
    next_page_token: str | None = None


class KeyCreated(Schema):
    """New key with its secret, which cannot be shown again."""

    key: ApiKey
    secret: SecretStr | None
    """Secret of the key. None when the request was repeated with its Idempotency-Key: the first answer had it.
    Rotate the key if the secret was lost."""

    @field_serializer("secret", when_used="json")
    def _shown_once(self, secret: SecretStr | None) -> str | None:
        return secret.get_secret_value() if secret is not None else None
