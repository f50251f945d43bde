"""What workers and the service say to each other. Deadlines travel as seconds from now, never as clock times."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster, Inventory
from shardtune.api_schemas.names import ONE_LINE, RowId, Said, StudyId
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Measurement, MeasurePlan, Progress
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement, ResumePlan

PROTOCOL_VERSION = 3
"""Raised when a worker of the previous version would misread a message. 3: the service names the sessions."""
SERVED_VERSIONS: tuple[int, ...] = (PROTOCOL_VERSION,)
"""What the service understands. Workers of version 2 made up their sessions, which a stranger could take: they are told to
be upgraded (`protocol_version`)."""

Session = Annotated[str, Field(min_length=8, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
"""Random name of one life of one worker, known to it and the service alone; a restarted worker is given a new one, and its
old leases are closed."""


AttemptNumber = Annotated[int, Field(ge=1, lt=2**31)]


class ModelSummaryTask(Schema):
    """Build the model on the meta device and say what it is made of."""

    kind: Literal["model_summary"] = "model_summary"
    model: ModelSpec
    workload: Workload


class TrialTask(Schema):
    """Train this configuration for a few steps and measure it. Also the content of `best/config.json`."""

    kind: Literal["trial"] = "trial"
    model: ModelSpec
    workload: Workload
    cluster: Cluster
    config: TrialConfig
    plan: MeasurePlan = MeasurePlan()
    memory_limit_gib: float | None = None
    """CPU ranks: more than this is `over_limit`. On a GPU the device is the limit and this is None."""
    forward_flops_per_token: float | None = None
    """From the profile, for MFU."""
    least_flops_per_token: float | None = None
    """From the profile, for what cannot be true."""


class OtherUseOfTrial(Schema):
    """A task that trains a trial's configuration for another end than its speed."""

    trial: TrialTask
    """What is trained; its plan and limit are not used."""

    @property
    def model(self) -> ModelSpec:
        """The trial's."""
        return self.trial.model

    @property
    def workload(self) -> Workload:
        """The trial's."""
        return self.trial.workload

    @property
    def cluster(self) -> Cluster:
        """The trial's."""
        return self.trial.cluster

    @property
    def config(self) -> TrialConfig:
        """The trial's."""
        return self.trial.config


class ResumeTask(OtherUseOfTrial):
    """Train, save a checkpoint and go on; then load it in new processes and go on from there."""

    kind: Literal["resume_check"] = "resume_check"
    plan: ResumePlan = ResumePlan()


class TraceTask(OtherUseOfTrial):
    """Train until steps are warm, then record a few under torch's profiler: a run of its own, never a timed one."""

    kind: Literal["trace"] = "trace"
    warmup_steps: int = Field(default=5, ge=1, le=100)
    steps: int = Field(default=3, ge=1, le=20)
    """Recorded; some megabytes of JSON each."""


Task = Annotated[ModelSummaryTask | TrialTask | ResumeTask | TraceTask, Field(discriminator="kind")]
"""What ranks can be told to do."""
TASK_KINDS: tuple[str, ...] = ("model_summary", "trial", "resume_check", "trace")
"""What this release's worker offers in its inventory."""


class Registration(Schema):
    """A worker introduces itself, or brings another inventory."""

    protocol_version: int
    session: Session | None = None
    """Of its present life, whose inventory has changed; None: a new life."""
    name: str = Field(min_length=1, max_length=200, pattern=ONE_LINE)
    """Stable name of the resource pool, such as the host name: a new session of it closes the old one's leases."""
    inventory: Inventory


class Registered(Schema):
    """The service's answer to a registration."""

    worker_id: str
    session: Session
    """Of this life; every later message carries it."""
    lease_s: float
    """A lease lasts this long from the last answered request."""
    heartbeat_s: float
    """Send a heartbeat this often."""


class Worker(Schema):
    """A worker as read by a user."""

    worker_id: str
    name: str
    inventory: Inventory
    registered_at: datetime
    """When its present life began; a change means that it was restarted."""
    seen_at: datetime
    """Last request of this life."""
    project_id: str | None = None
    """The only project whose studies it runs; None: every project's."""
    is_live: bool
    """Whether it asked for something lately; only live workers are offered to new studies."""
    is_draining: bool = False
    """It gets no more work; what it runs may finish."""
    run_id: str | None = None
    """What it executes now, where that is a run of the sender's projects."""
    condition: str | None = None
    """What is wrong with it, as far as canaries have found: slower than it was, where its peers are not."""


class WorkerPage(Schema):
    """Workers by name."""

    workers: tuple[Worker, ...]
    next_page_token: str | None = None


class LeaseRequest(Schema):
    """Ask for work; asking again returns the live lease of the session."""

    protocol_version: int
    session: Session
    wait_s: float = Field(default=0, ge=0, le=30)
    """How long the service may hold the request open while there is no work."""
    ends_in_s: float | None = Field(default=None, ge=0, le=1e9)
    """Until the worker must end, such as its job's time: a run that would hardly end before is not given. None: nobody knows."""


class Lease(Schema):
    """One attempt at one run, held by one worker session."""

    run_id: RowId
    attempt: AttemptNumber
    """1, 2, … per run; every later message about the run carries it."""
    study_id: StudyId
    trial_number: int | None
    """None for the profile task."""
    task: Task
    lease_s: float
    heartbeat_s: float
    deadline_s: float
    """Hard limit of the run, from now."""
    no_progress_s: float
    """The run is ended when no rank moves for this long."""
    is_alone: bool = False
    """It decides something: nothing else may run on its host meanwhile."""


class Heartbeat(Schema):
    """Renews a lease and carries progress up."""

    protocol_version: int
    session: Session
    attempt: AttemptNumber
    progress: Progress | None = None


class HeartbeatAnswer(Schema):
    """Carries control down."""

    action: Literal["continue", "stop"]
    reason: str | None = None
    """Why to stop: cancelled, lease lost, pruned."""
    lease_s: float
    is_draining: bool = False
    """The worker gets no more work after this run."""


class Report(Schema):
    """The end of an attempt: exactly one of `measurement`, `profile`, `restart`, `diagnosis`, `failure`."""

    protocol_version: int
    session: Session
    attempt: AttemptNumber
    measurement: Measurement | None = None
    model_summary: ModelSummary | None = None
    resume_check: ResumeMeasurement | None = None
    diagnosis: Diagnosis | None = None
    """Of a trace; findings are the service's own, whatever it says."""
    failure: Failure | None = None
    gpu_seconds: float = Field(ge=0, le=1e12)
    """Wall seconds of the attempt × ranks it held."""
    log_tail: Said | None = Field(default=None, max_length=20_000)
    """End of the failed rank's output, for a person."""


class ReportAnswer(Schema):
    """What became of a report."""

    applied: bool
    """False: the same report had been applied before."""
