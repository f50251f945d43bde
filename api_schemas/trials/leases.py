"""Messages between workers and the service. Deadlines are seconds from now, never clock times.

A change of a message needs a new protocol version (api_schemas.protocol); tests/protocol notices one without.
"""

from typing import Annotated, Literal, Self

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster, Inventory
from shardtune.api_schemas.names import ONE_LINE, ProgramOutput, RowId, StudyId
from shardtune.api_schemas.protocol import ProtocolMessage, Since
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.rehearsals import RehearsalReport
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement, ResumePlan

Session = Annotated[str, Field(min_length=8, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
"""Random name of a worker's session, known only to the worker and the service. A worker that restarts gets a new
session, and the leases of its old one are closed."""


AttemptNumber = Annotated[int, Field(ge=1, lt=2**31)]


class ModelSummaryTask(Schema):
    """Task to build the model on the meta device and count its parameters and FLOPs."""

    kind: Literal["model_summary"] = "model_summary"
    model: ModelSpec
    workload: Workload


class TrialTask(Schema):
    """Task to train a configuration for a few steps, and to measure its speed and memory. `best/config.json` has the
    same format."""

    kind: Literal["trial"] = "trial"
    model: ModelSpec
    workload: Workload
    cluster: Cluster
    config: TrialConfig
    plan: MeasurePlan = MeasurePlan()
    memory_limit_gib: float | None = None
    """Memory limit of a CPU rank in GiB; a run that exceeds it fails as `over_limit`. None on a GPU, whose memory is
    the limit."""
    forward_flops_per_token: float | None = None
    """FLOPs of one token's forward pass, from the summary of the model. Model FLOPs utilisation (MFU) is calculated
    from them."""
    training_flops_per_token: float | None = None
    """FLOPs of one token's forward and backward pass, from the summary of the model. They are given if frozen weights
    need no gradients. If None, they are three times the FLOPs of the forward pass."""
    least_flops_per_token: float | None = None
    """Minimum FLOPs of one token's forward pass, from the summary of the model. A measured speed that would need a
    higher rate than the device's peak is recognised as impossible."""
    leaves_parameters_unused: Annotated[bool, Since(2)] = False
    """Whether some trained parameters get no gradient in a step. DistributedDataParallel must then search for unused
    parameters; otherwise it would wait for their gradients."""

    @property
    def passes(self) -> float:
        """Number of forward passes that have as many FLOPs as one training step: 3, or fewer where frozen weights need
        no gradients."""
        if self.training_flops_per_token is None or not self.forward_flops_per_token:
            return 3.0
        return self.training_flops_per_token / self.forward_flops_per_token


class DerivedTrialTask(Schema):
    """Task that trains the configuration of a trial for a purpose other than measuring its speed, such as a resume
    check."""

    trial: TrialTask
    """Trial whose configuration is trained. Its memory limit and its measurement plan are ignored, except for
    `short_steps`, which a resume check uses."""

    @property
    def model(self) -> ModelSpec:
        """Model of the trial."""
        return self.trial.model

    @property
    def workload(self) -> Workload:
        """Workload of the trial."""
        return self.trial.workload

    @property
    def cluster(self) -> Cluster:
        """Cluster of the trial."""
        return self.trial.cluster

    @property
    def config(self) -> TrialConfig:
        """Configuration of the trial."""
        return self.trial.config


class ResumeTask(DerivedTrialTask):
    """Task of a resume check: train, save a checkpoint and continue, then load the checkpoint in new processes and
    continue from it."""

    kind: Literal["resume_check"] = "resume_check"
    plan: ResumePlan = ResumePlan()


class TraceTask(DerivedTrialTask):
    """Task to record steps under torch's profiler after warm-up, in a separate run that is never used for timing."""

    kind: Literal["trace"] = "trace"
    warmup_steps: int = Field(default=5, ge=1, le=100)
    steps: int = Field(default=3, ge=1, le=20)
    """Number of steps to record; each recorded step gives some megabytes of JSON."""

    @classmethod
    def of(cls, trial: TrialTask) -> Self:
        """Return the task that profiles a trial. It records whole cycles of the trial's samples (until their lengths
        repeat), so that its mean step time can be compared with the trial's."""
        cycle, fewest = trial.workload.steps_per_cycle, cls.model_fields["steps"].default
        return cls(trial=trial, steps=cycle * -(-fewest // cycle))


class RehearsalTask(Schema):
    """Task of one process of a rehearsal: build a trial's configuration and step it with fake tensors, as one rank. The
    process builds as many blocks as the model of the trial states."""

    trial: TrialTask
    """Trial whose configuration is built and stepped with fake tensors. The trial's cluster gives the number of
    ranks."""
    rank: int = Field(default=0, ge=0)
    """Number of the rank that the process builds and steps. No process runs for the other ranks; only their number
    matters."""
    micro_batches: int = Field(default=1, ge=1)
    """Number of micro batches in each rehearsed step: as many as it takes to reach the peak memory of a whole step."""


class TargetRehearsalTask(DerivedTrialTask):
    """Task to rehearse a configuration that was projected to a study's target: build it and step it with fake tensors,
    at the target's number of ranks. It occupies one rank of the worker, and no GPU."""

    kind: Literal["rehearsal"] = "rehearsal"
    parts: Annotated[tuple[RehearsalTask, ...], Since(2)] = Field(min_length=1, max_length=8)
    """Tasks of the processes that build and step the configuration with fake tensors, one after the other. They cover
    the ranks that need most memory, each with the whole model or with two smaller numbers of blocks."""
    part_limit_s: float = Field(default=300.0, gt=0, le=3600)
    """Maximum seconds of each process of the rehearsal, after which the worker ends it."""


Task = Annotated[
    ModelSummaryTask | TrialTask | ResumeTask | TraceTask | TargetRehearsalTask, Field(discriminator="kind")
]
"""Task that the ranks of a worker can execute, such as a trial."""
TASK_KINDS: tuple[str, ...] = ("model_summary", "trial", "resume_check", "trace", "recipe", "rehearsal", "sustained")
"""Kinds of tasks that a worker of this release lists in its inventory. `recipe` stands for trials in any precision of
this release that keep the losses of their first steps, up to 2,000. `sustained` stands for trials with more steps than
a report may have losses: such a worker reports the first ones only."""


def uses_cpu_adam(task: Task) -> bool:
    """Whether the ranks of a task train with DeepSpeed's CPU Adam, because the configuration offloads its optimizer."""
    # Neither of these two steps an optimizer with values.
    return not isinstance(task, ModelSummaryTask | TargetRehearsalTask) and task.config.offloads_optimizer


class Registration(ProtocolMessage):
    """Request of a worker to register, or to send its changed inventory. A service of any release must be able to read
    it, so later versions only add fields."""

    protocol_version: int
    """Newest protocol version that the worker speaks."""
    oldest_protocol_version: int | None = None
    """Oldest protocol version that the worker speaks. If None, the worker speaks `protocol_version` only."""
    release: str | None = Field(default=None, max_length=64, pattern=ONE_LINE)
    """Release of shardtune that the worker runs, for people."""
    session: Session | None = None
    """Session of the worker, if it is running and its inventory has changed. None if the worker has just started."""
    name: str = Field(min_length=1, max_length=200, pattern=ONE_LINE)
    """Stable name of the worker, such as the host name. A new session with the same name closes the leases of the old
    one."""
    inventory: Inventory


class Registered(ProtocolMessage):
    """Response of the service to a worker's registration."""

    protocol_version: int
    """Protocol version of all later messages of the session: the newest that both sides speak."""
    worker_id: str
    session: Session
    """Name of the worker's session, which every later message of the worker must contain."""
    lease_s: float
    """Seconds that a lease remains valid after the worker's last request that the service answered."""
    heartbeat_s: float
    """Seconds between two heartbeats (requests that renew a lease)."""


class LeaseRequest(ProtocolMessage):
    """Request of a worker for a run. Repeating the request returns the session's current lease."""

    protocol_version: int
    session: Session
    wait_s: float = Field(default=0, ge=0, le=30)
    """Maximum seconds that the service may wait with its response until a run is available."""
    ends_in_s: float | None = Field(default=None, ge=0, le=1e9)
    """Seconds until the worker must stop, such as the end of its cluster job. The service does not assign runs that
    would probably end later. If None, the end is not known."""


class QuietWait(Schema):
    """Instruction to a worker to wait before a run until other programs leave the machine."""

    most_s: float = Field(gt=0)
    """Maximum seconds to wait for other programs to leave the machine; after that, the run takes place anyway."""
    most_foreign_cores: float = Field(ge=0)
    """Number of CPU cores that other programs may use at most for the machine to count as quiet."""
    waited_s: float = Field(default=0, ge=0)
    """Seconds that earlier attempts at the run have already waited for a quiet machine; the run's reported wait
    includes them."""


class Lease(ProtocolMessage):
    """Lease of a run: the right of one worker session to execute one attempt at the run."""

    run_id: RowId
    attempt: AttemptNumber
    """Number of the attempt at the run: 1, 2, …; every later message about the run must contain it."""
    study_id: StudyId
    trial_number: int | None
    """Number of the trial; None if the task is to count the model's parameters and FLOPs, which belongs to no trial."""
    task: Task
    lease_s: float
    heartbeat_s: float
    deadline_s: float
    """Maximum duration of the run, in seconds from now."""
    no_progress_s: float
    """Seconds without progress of any rank after which the worker ends the run."""
    is_exclusive: bool = False
    """Whether nothing else may run on the host during this run, because its result decides a comparison."""
    quiet_wait: QuietWait | None = None
    """Instruction to wait before this run until the machine is quiet; if None, the run begins at once."""


class Heartbeat(ProtocolMessage):
    """Request with which a worker renews its lease of a run, and reports the run's progress."""

    protocol_version: int
    session: Session
    attempt: AttemptNumber
    progress: Progress | None = None


class HeartbeatAnswer(ProtocolMessage):
    """Response to a heartbeat, with instructions for the run."""

    action: Literal["continue", "stop"]
    reason: str | None = None
    """Reason why the worker must stop the run: cancelled, lease lost, or pruned."""
    lease_s: float
    is_draining: bool = False
    """Whether the worker gets no more runs after this one, because it is being drained."""


class Report(ProtocolMessage):
    """Report of a worker about the end of an attempt at a run. Exactly one of `measurement`, `model_summary`,
    `resume_check`, `diagnosis`, `rehearsal` and `failure` is given."""

    protocol_version: int
    session: Session
    attempt: AttemptNumber
    measurement: Measurement | None = None
    model_summary: ModelSummary | None = None
    """Summary of the model (parameters and FLOPs), if the task was to make one; None for other tasks."""
    resume_check: ResumeMeasurement | None = None
    diagnosis: Diagnosis | None = None
    """Diagnosis that the worker made from recorded traces. The service replaces the worker's findings by those that it
    computes itself."""
    rehearsal: Annotated[RehearsalReport | None, Since(2)] = None
    """Report of a rehearsal, in which processes built a configuration and stepped it with fake tensors at a target's
    number of ranks."""
    failure: Failure | None = None
    gpu_seconds: float = Field(ge=0, le=1e12)
    """GPU-seconds of the attempt: wall seconds × ranks, without the wait for a quiet machine. The service reduces a
    figure that is larger than the duration of the lease allows."""
    waited_s: float | None = Field(default=None, ge=0, le=1e9)
    """Seconds for which the run's attempts waited until the machine was quiet; None if they did not wait."""
    log_tail: ProgramOutput | None = Field(default=None, max_length=20_000)
    """Last lines of the failed rank's output, for people."""


class ReportAnswer(ProtocolMessage):
    """Response of the service to a worker's report."""

    applied: bool
    """Whether the report was applied; False if the same report had been applied before."""


class UnreadableLease(ProtocolMessage):
    """Report of a worker that it cannot read the lease of a run; the service gives the run to another worker."""

    protocol_version: int
    session: Session
    attempt: AttemptNumber
    message: ProgramOutput = Field(max_length=2000)
    """Description of the fields that the worker cannot read, for people."""
