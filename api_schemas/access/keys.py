"""Projects and the API keys that act for them, as read by a user. A secret is in one answer only: that of its creation."""

from datetime import datetime
from enum import StrEnum

from pydantic import ConfigDict, Field, SecretStr, field_serializer

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import ONE_LINE
from shardtune.api_schemas.retuning.retunes import RetunePolicy

DEFAULT_PROJECT = "default"
"""Owns what is created without keys."""

PROJECT_PATTERN = r"^[a-z0-9][a-z0-9-]{0,31}$"


class Scope(StrEnum):
    """What a key may do. `admin` includes the others."""

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
    """Of all keys of the project, counted by each service process; what workers ask does not count."""

    @property
    def limits_use(self) -> bool:
        """Whether what the project uses is limited, and not how often it asks alone."""
        return self.running_studies is not None or self.gpu_seconds_per_day is not None


class ProjectSpec(Schema):
    """What can be set on a project."""

    quotas: Quotas = Quotas()
    requires_approval: bool = False
    """A new best configuration is served only after a person has approved it."""
    retuning: RetunePolicy = RetunePolicy()
    """What may be measured again by itself, when, and at what cost."""


class Project(ProjectSpec):
    """A project as stored."""

    project_id: str
    created_at: datetime


class ProjectPage(Schema):
    """Projects by id."""

    projects: tuple[Project, ...]
    next_page_token: str | None = None


class KeySpec(Schema):
    """A key to be made."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "team", "scopes": ["studies:read"]}]})

    name: str = Field(min_length=1, max_length=100, pattern=ONE_LINE)
    """What it is for; appears in the history of decisions made with it."""
    scopes: tuple[Scope, ...] = Field(min_length=1, max_length=len(Scope))
    project_id: str | None = Field(default=None, pattern=PROJECT_PATTERN)
    """The only project it sees. None: every project, for the operator's own keys and for workers that serve all."""
    expires_in_days: float | None = Field(default=None, gt=0, le=3650)


class RotateRequest(Schema):
    """How a key is replaced by a new one of the same name, project and scopes."""

    grace_s: float = Field(default=0, ge=0, le=30 * 86_400)
    """Seconds for which the old secret stays valid, so that its users can be moved one by one."""
    expires_in_days: float | None = Field(default=None, gt=0, le=3650)


class ApiKey(Schema):
    """A key as stored: everything but its secret."""

    key_id: str
    prefix: str
    """Start of the secret, to tell keys apart."""
    name: str
    project_id: str | None
    scopes: tuple[Scope, ...]
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """Exact to some minutes."""
    revoked_at: datetime | None = None
    is_valid: bool


class ApiKeyPage(Schema):
    """Keys, newest first."""

    keys: tuple[ApiKey, ...]
    next_page_token: str | None = None


class KeyCreated(Schema):
    """A new key with its secret, which cannot be shown again."""

    key: ApiKey
    secret: SecretStr | None
    """None when the request was repeated with its Idempotency-Key: the first answer had it. Rotate the key if it was lost."""

    @field_serializer("secret", when_used="json")
    def _shown_once(self, secret: SecretStr | None) -> str | None:
        return secret.get_secret_value() if secret is not None else None
