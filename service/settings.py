"""What an operator can set; every field is read from `SHARDTUNE_<NAME>`."""

from dataclasses import replace
from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shardtune.api_schemas.times import check_windows, check_zone
from shardtune.api_schemas.trials.measurements import MeasurePlan
from shardtune.api_schemas.trials.resume_check import ResumePlan
from shardtune.db.limits import DatabaseLimits
from shardtune.db.session import parse_url

DEFAULT_DATABASE_URL = "sqlite:///.shardtune/shardtune.sqlite3"
SECRET_FIELDS = ("database_url", "secret_key")
"""Never repeated in an error, not even where they cannot be read."""


class Settings(BaseSettings):
    """Settings of one service process."""

    model_config = SettingsConfigDict(env_prefix="SHARDTUNE_", frozen=True, extra="ignore", hide_input_in_errors=True)

    database_url: str = DEFAULT_DATABASE_URL
    """`sqlite:///PATH` or `postgresql://USER@HOST/NAME`."""
    database_connections: int = Field(default=15, ge=4)
    """To Postgres, that this process opens at most."""
    database_lock_s: float | None = Field(default=None, gt=0)
    """How long a request waits for a row that another holds, or for a free connection. None: a fifth of the lease."""
    database_statement_s: float | None = Field(default=None, gt=0)
    """How long one SQL statement may take. None: half the lease."""
    database_idle_s: float | None = Field(default=None, gt=0)
    """After this the server ends a transaction that asks nothing: how long a lost host holds rows. None: half the lease."""
    log_level: str = "INFO"
    """Least level that is logged: `DEBUG`, `INFO`, `WARNING` or `ERROR`."""
    require_keys: bool = False
    """Without any API key everything is rejected, also to this machine. For a service behind a proxy, which makes everybody
    look local; the first key is made with `shardtune keys create`, on the database itself."""
    telemetry: bool = False
    """Record a span and a duration for each request by OpenTelemetry, exported by OTLP as `OTEL_*` variables say."""

    lease_s: float = Field(default=20, gt=0)
    """A worker that has not been heard of for this long loses its run. Shorter: faster recovery, less patience with networks."""
    heartbeat_s: float = Field(default=2, gt=0)
    """How often a worker renews; several must fit into a lease."""
    sweep_s: float = Field(default=2, gt=0)
    """How often expired leases are looked for."""
    poll_s: float = Field(default=0.5, gt=0)
    """How often a waiting lease request looks for work."""
    worker_live_s: float = Field(default=90, gt=0)
    """A worker counts as live for this long after its last request."""
    fingerprint_check_s: float = Field(default=5, gt=0)
    """How often what is served is held against the workers' fingerprints."""
    fingerprint_debounce_s: float = Field(default=300, ge=0)
    """A change is announced, and a retune asked for, when nothing has changed for this long: a rolling one is one event."""
    fingerprint_gone_s: float = Field(default=3600, ge=0)
    """A silent worker counts with its last fingerprint for this long: a reboot must not make stale what it will run."""
    canary_period_s: float | None = Field(default=None, ge=60)
    """What is served is run again this often, on one worker, to see whether it is as fast as it was. None: never."""
    canary_check_s: float = Field(default=5, gt=0)
    """How often canaries are looked after."""
    run_deadline_s: float = Field(default=300, gt=0)
    """Limit of one run, building the model included, before the time of its steps is added: three times as it was predicted,
    or as they turn out to be."""
    no_progress_s: float = Field(default=60, gt=0)
    """A run is ended when no rank moves for this long, or for three of its steps."""
    stream_heartbeat_s: float = Field(default=15, gt=0)
    """A silent event stream gets a comment this often, so that proxies keep it open."""
    max_streams_per_client: int = Field(default=16, ge=1)
    """Event streams that one client may hold open at one process."""
    max_streams: int = Field(default=1000, ge=1)
    """Event streams that all clients together may hold open at one process."""
    secret_key: SecretStr | None = Field(default=None, min_length=32)
    """Secrets of webhooks are derived from it; the same for every replica. Beside SQLite a file is made without it."""
    webhook_allow_private: bool = False
    """Webhooks may also go to private and loopback addresses, such as a receiver in the same network."""
    keep_events_days: float = Field(default=90, gt=0)
    """Events and finished webhook messages older than this are forgotten, once their study has ended."""
    keep_logs_days: float = Field(default=90, gt=0)
    """Ends of ranks' output older than this are forgotten. Measurements, attempts and results never are."""
    keep_traces_days: float = Field(default=30, gt=0)
    """Raw traces of runs under the profiler older than this are forgotten; what they told stays."""
    keep_traces_mib: float = Field(default=256, ge=0)
    """Of a project's raw traces; its oldest go for new ones. 0: none are stored, and they stay with their workers."""
    max_trace_mib: float = Field(default=16, ge=0, le=32)
    """Of one rank's raw trace; a larger one stays with its worker, and the diagnosis says so."""
    keep_workers_days: float = Field(default=90, gt=0)
    """Workers that were not heard of for this long are forgotten: listed nowhere until they register again."""
    max_workers: int = Field(default=2000, ge=1)
    """Workers a project may have registered, and as many that serve every project."""
    registrations_per_minute: int = Field(default=600, ge=1)
    """New workers and changes of hardware and software that a project may register in a minute, at each process."""
    requires_approval: bool = False
    """In every project a new best configuration is served only after a person has approved it, whatever the project says."""
    max_webhooks: int = Field(default=100, ge=1)
    """Webhooks a project may have, and as many that are told of every project."""
    price_per_gpu_hour: float | None = Field(default=None, ge=0)
    """Of one GPU (or CPU rank) for an hour, for reports of costs. None: costs are told in GPU-seconds alone."""
    currency: str = Field(default="USD", min_length=1, max_length=8)
    """Of that price."""
    retune_gpu_seconds_per_day: float = Field(default=86_400, ge=0)
    """Seconds × ranks that retunes and canaries of all projects may use between two midnights; `inf`: no limit."""
    retune_timezone: str = "UTC"
    """IANA name; of that day, and of `retune_windows`."""
    retune_windows: tuple[str, ...] = ()
    """When retunes may start, such as `["22:00-06:00"]`; empty: at any time."""
    retune_yields: Literal["after_run", "at_once"] = "after_run"
    """To a study somebody waits for: a retune's worker takes it after the present run, or gives that run up."""
    retune_every_s: float = Field(default=5, gt=0)
    """How often schedules and retunes are looked at."""
    max_schedules: int = Field(default=100, ge=1)
    """Schedules a project may have."""
    schedule_least_gap_s: float = Field(default=300, ge=60)
    """Seconds that must lie between two ticks of a schedule."""
    max_connections: int = Field(default=4096, ge=64)
    """Connections one process holds open; must have room for streams and waiting workers. Beyond it: 503."""
    request_receive_s: float = Field(default=30, gt=0)
    """A request must have arrived so long after its first byte, and an answer be taken; else the connection ends."""
    measure: MeasurePlan = MeasurePlan()
    """How long runs warm up and measure; JSON in the environment."""
    resume_check: ResumePlan = ResumePlan()
    """How long the winner trains before and after its restart; JSON in the environment."""

    @field_validator("retune_timezone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        return check_zone("retune_timezone", name)

    @field_validator("retune_windows")
    @classmethod
    def _readable_windows(cls, windows: tuple[str, ...]) -> tuple[str, ...]:
        return check_windows("retune_windows", windows)

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, url: str) -> str:
        parse_url(url)
        return url

    @property
    def database_limits(self) -> DatabaseLimits:
        """What is set, and the rest as the lease needs it."""
        limits = DatabaseLimits.within(self.lease_s, self.database_connections)
        limits = replace(
            limits,
            lock_s=self.database_lock_s or limits.lock_s,
            statement_s=self.database_statement_s or limits.statement_s,
            idle_s=self.database_idle_s or limits.idle_s,
        )
        return replace(limits, silence_s=max(limits.silence_s, limits.statement_s * 1.2))
