"""Messages between workers and the service. Deadlines travel as seconds from now, never as clock times."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster, Inventory
from shardtune.api_schemas.names import ONE_LINE, ProgramOutput, RowId, StudyId
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Measurement, MeasurePlan, Progress
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement, ResumePlan

PROTOCOL_VERSION = 3
"""Version of the messages, raised when a worker of the previous version would misread one. 3: the service names the
sessions."""
SUPPORTED_PROTOCOL_VERSIONS: tuple[int, ...] = (PROTOCOL_VERSION,)
"""Versions that the service accepts. Workers of version 2 made up their sessions, which a stranger could take: they
are told to upgrade (`protocol_version`)."""

Session = Annotated[str, Field(min_length=8, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
"""Random name of one worker session, known to the worker and the service alone; a restarted worker gets a new one,
and its old leases are closed."""


AttemptNumber = Annotated[int, Field(ge=1, lt=2**31)]


class ModelSummaryTask(Schema):
    """Task to build the model on the meta device and summarise it."""

    kind: Literal["model_summary"] = "model_summary"
    model: ModelSpec
    workload: Workload


class TrialTask(Schema):
    """Task to train a configuration for a few steps and measure it. Also the content of `best/config.json`."""

    kind: Literal["trial"] = "trial"
    model: ModelSpec
    workload: Workload
    cluster: Cluster
    config: TrialConfig
    plan: MeasurePlan = MeasurePlan()
    memory_limit_gib: float | None = None
    """Memory limit of a CPU rank; more is `over_limit`. None on a GPU, where the device is the limit."""
    forward_flops_per_token: float | None = None
    """FLOPs from the model summary, for MFU."""
    least_flops_per_token: float | None = None
    """Least FLOPs from the model summary, to detect impossible speeds."""


class DerivedTrialTask(Schema):
    """Task that trains a trial's configuration for another end than its speed."""

    trial: TrialTask
    """Trial to train; its plan and limit are not used."""

    @property
    def model(self) -> ModelSpec:
        """Value of the trial."""
        return self.trial.model

    @property
    def workload(self) -> Workload:
        """Value of the trial."""
        return self.trial.workload

    @property
    def cluster(self) -> Cluster:
        """Value of the trial."""
        return self.trial.cluster

    @property
    def config(self) -> TrialConfig:
        """Value of the trial."""
        return self.trial.config


class ResumeTask(DerivedTrialTask):
    """Task to train, save a checkpoint and continue, then load it in new processes and continue from there."""

    kind: Literal["resume_check"] = "resume_check"
    plan: ResumePlan = ResumePlan()


class TraceTask(DerivedTrialTask):
    """Task to train until steps are warm, then record a few under torch's profiler: a run of its own, never a timed
    one."""

    kind: Literal["trace"] = "trace"
    warmup_steps: int = Field(default=5, ge=1, le=100)
    steps: int = Field(default=3, ge=1, le=20)
    """Number of recorded steps; some megabytes of JSON each."""


Task = Annotated[ModelSummaryTask | TrialTask | ResumeTask | TraceTask, Field(discriminator="kind")]
"""Task that ranks can execute."""
TASK_KINDS: tuple[str, ...] = ("model_summary", "trial", "resume_check", "trace")
"""Kinds of tasks that this release's worker offers in its inventory."""


class Registration(Schema):
    """Registration of a worker, or its new inventory."""

    protocol_version: int
    session: Session | None = None
    """Session of a running worker whose inventory has changed; None: the worker has just started."""
    name: str = Field(min_length=1, max_length=200, pattern=ONE_LINE)
    """Stable name of the resource pool, such as the host name: a new session of it closes the old one's leases."""
    inventory: Inventory


class Registered(Schema):
    """Answer of the service to a registration."""

    worker_id: str
    session: Session
    """Session of the worker; every later message carries it."""
    lease_s: float
    """Seconds that a lease lasts from the last answered request."""
    heartbeat_s: float
    """Seconds between two heartbeats."""


class Worker(Schema):
    """Worker as read by a user."""

    worker_id: str
    name: str
    inventory: Inventory
    registered_at: datetime
    """Time at which its present session began; a change means that it was restarted."""
    seen_at: datetime
    """Time of the last request of this session."""
    project_id: str | None = None
    """Project whose studies alone it runs; None: every project's."""
    is_live: bool
    """Whether it sent a request lately; only live workers are offered to new studies."""
    is_draining: bool = False
    """Whether it gets no more work; the current run may finish."""
    run_id: str | None = None
    """Run that it executes now, if that is one of the sender's projects."""
    condition: str | None = None
    """Problem that canaries have found: slower than it was, where its peers are not."""


class WorkerPage(Schema):
    """Workers by name."""

    workers: tuple[Worker, ...]
    next_page_token: str | None = None


class LeaseRequest(Schema):
    """Request for work; repeating it returns the live lease of the session."""

    protocol_version: int
    session: Session
    wait_s: float = Field(default=0, ge=0, le=30)
    """Seconds for which the service may hold the request open while there is no work."""
    ends_in_s: float | None = Field(default=None, ge=0, le=1e9)
    """Seconds until the worker must end, such as the end of its job: a run that would hardly end before is not
    given. None: unknown."""


class Lease(Schema):
    """Attempt at a run, held by one worker session."""

    run_id: RowId
    attempt: AttemptNumber
    """Number of the attempt: 1, 2, … per run; every later message about the run carries it."""
    study_id: StudyId
    trial_number: int | None
    """Number of the trial; None for the model summary task."""
    task: Task
    lease_s: float
    heartbeat_s: float
    deadline_s: float
    """Hard limit of the run, in seconds from now."""
    no_progress_s: float
    """Seconds without progress of any rank after which the run is ended."""
    is_alone: bool = False
    """Whether nothing else may run on its host meanwhile, since the run decides something."""


class Heartbeat(Schema):
    """Renewal of a lease, with the progress of the run."""

    protocol_version: int
    session: Session
    attempt: AttemptNumber
    progress: Progress | None = None


class HeartbeatAnswer(Schema):
    """Answer to a heartbeat, with control of the run."""

    action: Literal["continue", "stop"]
    reason: str | None = None
    """Reason to stop: cancelled, lease lost, pruned."""
    lease_s: float
    is_draining: bool = False
    """Whether the worker gets no more work after this run."""


class Report(Schema):
    """End of an attempt: exactly one of `measurement`, `model_summary`, `resume_check`, `diagnosis`, `failure`."""

    protocol_version: int
    session: Session
    attempt: AttemptNumber
    measurement: Measurement | None = None
    model_summary: ModelSummary | None = None
    """Summary of the model, of a model summary task."""
    resume_check: ResumeMeasurement | None = None
    diagnosis: Diagnosis | None = None
    """Diagnosis of a trace; the service replaces its findings by its own."""
    failure: Failure | None = None
    gpu_seconds: float = Field(ge=0, le=1e12)
    """Wall seconds of the attempt × ranks it held."""
    log_tail: ProgramOutput | None = Field(default=None, max_length=20_000)
    """End of the failed rank's output, for a person."""


class ReportAnswer(Schema):
    """Answer to a report."""

    applied: bool
    """Whether the report was applied; False: the same report had been applied before."""
