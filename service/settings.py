"""Settings of the service, each read from the environment variable `SHARDTUNE_<NAME>`."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shardtune.api_schemas.protocol import REQUEST_TIMEOUT_S
from shardtune.api_schemas.times import check_windows, check_zone
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.resume_check import ResumePlan
from shardtune.db.limits import MOST_LOCK_S, DatabaseLimits
from shardtune.db.session import parse_url
from shardtune.service.hub_endpoint import check_endpoint
from shardtune.service.trusted_proxies import check_proxies
from shardtune.tuner.plans.operator_prices import check_kinds

DEFAULT_DATABASE_URL = "sqlite:///.shardtune/shardtune.sqlite3"
SECRET_FIELDS = ("database_url", "secret_key")
"""Names of the settings that are secret. No error message shows their values, not even the error that the settings
cannot be parsed."""


class Settings(BaseSettings):
    """Settings of one service process."""

    model_config = SettingsConfigDict(env_prefix="SHARDTUNE_", frozen=True, extra="ignore", hide_input_in_errors=True)

    database_url: str = DEFAULT_DATABASE_URL
    """URL of the database: `sqlite:///PATH` or `postgresql://USER@HOST/NAME`."""
    database_connections: int = Field(default=15, ge=4)
    """Maximum number of Postgres connections that one service process opens."""
    database_lock_s: float | None = Field(default=None, gt=0)
    """Maximum number of seconds that a request waits for a row locked by another transaction, or for a free database
    connection; 4 at most, because workers wait 5 seconds for a response. Default: a fifth of `lease_s`, at most 4.
    """
    database_statement_s: float | None = Field(default=None, gt=0)
    """Maximum duration of one SQL statement in seconds. Default: half of `lease_s`."""
    database_idle_s: float | None = Field(default=None, gt=0)
    """Seconds of inactivity after which Postgres ends a transaction. It limits how long the transaction of a crashed
    host keeps its row locks. Default: half of `lease_s`."""
    log_level: str = "INFO"
    """Lowest level of log lines: `DEBUG`, `INFO`, `WARNING` or `ERROR`."""
    require_keys: bool = False
    """Reject every request without an API key, also from the service's own machine. Set it for a service behind a
    proxy, which makes every client look local; create the first key with `shardtune keys create`, which writes to the
    database directly.
    """
    trusted_proxies: tuple[str, ...] = ("127.0.0.1", "::1")
    """Addresses and networks of the proxies in front of the service, as JSON: `["10.0.0.7", "10.244.0.0/16"]`. Only their
    `X-Forwarded-Proto` (cookies become `Secure` over TLS) and `X-Forwarded-For` (each client gets limits of its own) count.
    """
    docs_dir: Path | None = None
    """Folder of the documentation site, served under `/docs/`. Default: `build/site` of the checkout that the service
    runs from, where `make docs` builds it.
    """
    mcp: bool = False
    """Serve the tools for coding agents at `/mcp` (Model Context Protocol, streamable HTTP), behind the same keys, scopes
    and limits as the REST API. Needs the extra `mcp`.
    """
    telemetry: bool = False
    """Record a span and a duration for each HTTP request with OpenTelemetry, exported by OTLP as configured by the
    `OTEL_*` environment variables.
    """

    lease_s: float = Field(default=20, gt=0)
    """Seconds without a heartbeat after which a worker loses its run. With a shorter time, the service recovers faster
    from a crash, but only shorter network outages are tolerated."""
    heartbeat_s: float = Field(default=2, gt=0)
    """Interval in seconds at which a worker renews its lease (its claim on a run); several intervals must fit into
    `lease_s`."""
    sweep_s: float = Field(default=2, gt=0)
    """Interval in seconds at which the service checks for expired leases."""
    poll_s: float = Field(default=0.5, gt=0)
    """Interval in seconds at which the service queries the database for changed studies while requests of workers wait
    for work."""
    worker_live_s: float = Field(default=90, gt=0)
    """Maximum seconds since a worker's last request for which the worker counts as live."""
    fingerprint_check_s: float = Field(default=5, gt=0)
    """Interval in seconds at which the fingerprints (hardware and software versions) of recommendations are compared
    with those of the workers.
    """
    fingerprint_debounce_s: float = Field(default=300, ge=0)
    """Seconds that must pass without a further change before a change of workers' fingerprints (hardware and software
    versions) is announced and a retune requested. A rolling upgrade therefore causes only one event."""
    fingerprint_gone_s: float = Field(default=3600, ge=0)
    """Seconds for which the last fingerprint (hardware and software versions) of a worker that sends nothing still
    counts, so that a reboot does not make a recommendation stale."""
    canary_period_s: float | None = Field(default=None, ge=60)
    """Interval in seconds at which a recommended configuration runs again on one worker (canary), to detect slow-downs.
    Default: never.
    """
    canary_check_s: float = Field(default=5, gt=0)
    """Interval in seconds at which the service judges finished canaries (repeated runs of recommended configurations)
    and starts the canaries that are due.
    """
    run_deadline_s: float = Field(default=300, gt=0)
    """Time limit of a run in seconds, including building the model. The time for its training steps is added: for each
    step, three times its predicted or, without a prediction, its measured time."""
    no_progress_s: float = Field(default=60, gt=0)
    """Seconds after which a run is ended because no rank made progress; the time of three steps is added to them."""
    stream_heartbeat_s: float = Field(default=15, gt=0)
    """Interval in seconds at which an idle event stream gets a comment, so that proxies keep the connection open."""
    max_streams_per_client: int = Field(default=16, ge=1)
    """Maximum number of event streams that one client may keep open at one service process."""
    max_streams: int = Field(default=1000, ge=1)
    """Maximum number of event streams that all clients together may keep open at one service process. One project can
    open at most as many as then remain free, which is at most half of them."""
    secret_key: SecretStr | None = Field(default=None, min_length=32)
    """Key from which the secrets of webhooks are derived, and the key that signs the confirmation codes for coding
    agents; at least 32 characters, the same for every replica of the service. Without it, a key file is created beside
    a SQLite database.
    """
    webhook_allow_private: bool = False
    """Allow webhooks to send to private and loopback addresses, such as a receiver in the same network."""
    hub: bool = False
    """Let users name models by their repository on a Hugging Face hub, whose `config.json` the service reads without a
    token. Otherwise only the command line reads models from the hub.
    """
    hub_endpoint: str | None = None
    """URL of the Hugging Face hub or of a mirror. Default: the variable `HF_ENDPOINT`, else `https://huggingface.co`.
    """
    hub_hosts: tuple[str, ...] = ("huggingface.co",)
    """Hosts that the service may request to read models, redirects included; must contain the host of `hub_endpoint`.
    """
    hub_allow_private: bool = False
    """Allow hosts of the hub with private and loopback addresses, such as a mirror in the same network."""
    keep_events_days: float = Field(default=90, gt=0)
    """Days for which events and finished webhook messages are kept; the events of unfinished studies are kept longer.
    """
    keep_logs_days: float = Field(default=90, gt=0)
    """Days for which the last output lines of each run's ranks are kept. Measurements, attempts and results are never
    deleted.
    """
    keep_traces_days: float = Field(default=30, gt=0)
    """Days for which raw traces of runs under the profiler are kept; their diagnoses are always kept."""
    keep_traces_mib: float = Field(default=256, ge=0)
    """Maximum total size in MiB of the raw traces of one project; the oldest are deleted to make room. With 0, the
    service stores no traces, and each trace stays with the worker that recorded it."""
    max_trace_mib: float = Field(default=16, ge=0, le=32)
    """Maximum size of one rank's raw trace in MiB. A larger trace stays with the worker that recorded it, and the
    diagnosis reports that.
    """
    keep_workers_days: float = Field(default=90, gt=0)
    """Days without a request after which a worker is removed from all lists. It appears again when it registers."""
    max_workers: int = Field(default=2000, ge=1)
    """Maximum number of workers of one project. The same maximum applies to the workers that serve every project."""
    registrations_per_minute: int = Field(default=600, ge=1)
    """Maximum number of new workers and changed fingerprints (hardware and software versions) that a project may
    register per minute at each service process."""
    requires_approval: bool = False
    """Require a person's approval before a new best configuration is recommended, in every project, whatever the
    project's own setting is.
    """
    max_webhooks: int = Field(default=100, ge=1)
    """Maximum number of webhooks of one project. The same maximum applies to the webhooks that receive the events of
    every project."""
    price_per_gpu_hour: float | None = Field(default=None, ge=0)
    """Price of one GPU (or CPU rank) for an hour, used in cost reports. Default: costs are reported in GPU-seconds
    only.
    """
    currency: str = Field(default="USD", min_length=1, max_length=8)
    """Currency of `price_per_gpu_hour` and of `gpu_prices`, as shown in cost reports and plans."""
    gpu_prices: dict[str, Annotated[float, Field(gt=0, le=1e6)]] = {}
    """Price of one GPU for an hour by its name in the catalogue, such as `{"h100": 2.1}`, in `currency`. Plans use it
    for kinds of GPUs whose price the request does not state, unless the request's own prices may be in another currency.
    Default: plans know only the prices of their requests.
    """
    retune_gpu_seconds_per_day: float = Field(default=86_400, ge=0)
    """GPU-seconds (seconds × ranks) that retunes and canaries of all projects together may use per day, from midnight
    to midnight; `inf`: no limit.
    """
    retune_timezone: str = "UTC"
    """IANA time zone, such as `Europe/Berlin`, that defines the day of `retune_gpu_seconds_per_day` and the hours of
    `retune_windows`.
    """
    retune_windows: tuple[str, ...] = ()
    """Time windows in which retunes may start, such as `["22:00-06:00"]`; an empty list allows any time."""
    retune_yields: Literal["after_run", "at_once"] = "after_run"
    """Moment at which a retune gives up its worker to a user's waiting study: `after_run`, when its current run ends,
    or `at_once`, by aborting that run.
    """
    retune_every_s: float = Field(default=5, gt=0)
    """Interval in seconds at which the service checks schedules and retunes for due steps."""
    max_schedules: int = Field(default=100, ge=1)
    """Maximum number of schedules of one project."""
    schedule_least_gap_s: float = Field(default=300, ge=60)
    """Minimum seconds between two ticks (scheduled runs) of one schedule."""
    max_connections: int = Field(default=4096, ge=64)
    """Maximum number of connections that one process keeps open, including event streams and the connections of
    workers that wait for work. Further connections get 503."""
    request_receive_s: float = Field(default=30, gt=0)
    """Maximum seconds from a request's first byte until all of it has arrived, and maximum seconds that a client may
    take to read a response. After that, the connection is closed."""
    measure: MeasurePlan = MeasurePlan()
    """Plan of each run's measurement: number of warm-up steps, and of timed windows (groups of steps that are timed
    together). JSON in the environment."""
    resume_check: ResumePlan = ResumePlan()
    """Number of steps that a study's winner trains before its checkpoint is saved, and after it resumes from the
    checkpoint (resume check). JSON in the environment."""

    @field_validator("gpu_prices")
    @classmethod
    def _known_kinds(cls, prices: dict[str, float]) -> dict[str, float]:
        check_kinds(prices, "gpu_prices")
        return prices

    @field_validator("retune_timezone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        return check_zone("retune_timezone", name)

    @field_validator("retune_windows")
    @classmethod
    def _readable_windows(cls, windows: tuple[str, ...]) -> tuple[str, ...]:
        return check_windows("retune_windows", windows)

    @field_validator("trusted_proxies")
    @classmethod
    def _known_proxies(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        return check_proxies(proxies)

    @field_validator("database_lock_s")
    @classmethod
    def _ends_before_a_request(cls, seconds: float | None) -> float | None:
        if seconds is not None and seconds > MOST_LOCK_S:
            raise ValueError(
                f"database_lock_s ({seconds:g}) must be at most {MOST_LOCK_S:g}, because workers wait "
                f"{REQUEST_TIMEOUT_S:g} s for a response; unset SHARDTUNE_DATABASE_LOCK_S, or lower it"
            )
        return seconds

    @field_validator("mcp")
    @classmethod
    def _mcp_is_installed(cls, is_on: bool) -> bool:
        if is_on and find_spec("mcp") is None:
            raise ValueError(
                "mcp (true) needs the package mcp; run `pip install 'shardtune[service,mcp]'` with the service's own pip, "
                "since no index has this project's package"
            )
        return is_on

    @field_validator("docs_dir")
    @classmethod
    def _site_exists(cls, folder: Path | None) -> Path | None:
        if folder is not None and not (folder / "index.html").is_file():
            raise ValueError(f"docs_dir ({folder}) has no index.html; name the folder that `make docs` has built")
        return folder

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, url: str) -> str:
        parse_url(url)
        return url

    @model_validator(mode="after")
    def _hub_is_allowed(self) -> "Settings":
        if self.hub:
            check_endpoint(self.hub_endpoint, self.hub_hosts)
        return self

    @property
    def database_limits(self) -> DatabaseLimits:
        """Limits of the database: maximum seconds of waiting for a lock, of a statement, and of an idle transaction.
        Values that the operator did not set are derived from the lease."""
        # Derived from `lease_s`: a lost replica's locks must be gone before leases of the others' workers expire.
        limits = DatabaseLimits.for_lease(self.lease_s, self.database_connections)
        limits = replace(
            limits,
            lock_s=self.database_lock_s or limits.lock_s,
            statement_s=self.database_statement_s or limits.statement_s,
            idle_s=self.database_idle_s or limits.idle_s,
        )
        # Silence must outlast the longest statement, which sends nothing while it runs.
        return replace(limits, silence_s=max(limits.silence_s, limits.statement_s * 1.2))
