"""Attempt of one leased task on this machine, from creating its trial directory to its result; used by the agent and by
`run-trial`."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shardtune.api_schemas.base import Dtype
from shardtune.api_schemas.machines.engines import ENGINES_IN_WORDS
from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes, emulation_note
from shardtune.api_schemas.trials.diagnosis import ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.leases import (
    DerivedTrialTask,
    ModelSummaryTask,
    TargetRehearsalTask,
    Task,
    TraceTask,
    TrialTask,
)
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.rehearsals import RehearsalReport
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.workers.agent.collect import attempt_outcome
from shardtune.workers.agent.resume_phases import run_to_end
from shardtune.workers.agent.supervise import RanksEnd, RunLimits
from shardtune.workers.config.allowlist import Allowed
from shardtune.workers.launchers.base import Launcher, LaunchFailed
from shardtune.workers.launchers.operators import OperatorBuild
from shardtune.workers.machine.conditions import with_conditions
from shardtune.workers.trial_dir import DiskFull, TrialDir

AcquireDevices = Callable[[bool, Callable[[], bool]], AbstractContextManager[bool]]
"""Function that acquires the devices for one run.

Its arguments are whether the run needs the host alone, and a function that returns true when waiting must end. It
returns a context, whose value is false if the wait ended without the devices.
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Workplace:
    """Machine, launcher and settings that a worker uses to attempt any task."""

    work_dir: Path
    launcher: Launcher
    fingerprint: Fingerprint
    ranks: int
    """Maximum number of ranks in a trial, on all hosts together."""
    peak_flops: float | None
    """Peak FLOP/s of one device in bf16; None if unknown."""
    min_free_gib: float
    """GiB that must be free on the disk of `work_dir` to start a trial."""
    nodes: int = 1
    """Number of hosts; each runs an equal part of the ranks."""
    shared_dir: Path | None = None
    """Folder that all hosts see."""
    ends_in_s: Callable[[], float | None] = lambda: None
    """Seconds until this worker must end, such as at the end of its Slurm job; None if unknown."""
    matmul_flops: Mapping[Dtype, float] = field(default_factory=dict)
    """FLOP/s that one rank reaches, by dtype, as measured when the worker started; empty if they were not measured."""
    allowed: Allowed = field(default_factory=Allowed)
    """Scripts and entry points of the user that a task may name."""
    operator_build: OperatorBuild | None = None
    """Build of DeepSpeed's operators before the first task that needs them; None if nothing is to be built."""
    acquire_devices: AcquireDevices | None = None
    """Function that locks the devices for a run on a host with several workers; None if this worker is the only user of
    its devices."""

    @contextmanager
    def devices(self, is_exclusive: bool, give_up: Callable[[], bool]) -> Iterator[bool]:
        """Acquire the devices for the duration of a run; yields false if `give_up` ended the wait. On a host that several
        workers share, no run uses the devices before it has acquired them."""
        if self.acquire_devices is None:
            yield True
            return
        with self.acquire_devices(is_exclusive, give_up) as are_ours:
            yield are_ours and self.is_ready(give_up)

    def build_operators(self, task: Task, give_up: Callable[[], bool]) -> None:
        """Build DeepSpeed's operators if the task needs them, unless this worker has done so or `give_up` ends it."""
        if self.operator_build is not None:
            self.operator_build.run_before(task, give_up)

    @property
    def progress(self) -> Progress | None:
        """Progress of a run before its ranks exist: the build of operators. None if nothing is being built."""
        # With this change the service extends the run's deadline, which counts from the lease.
        return (
            Progress(phase="starting") if self.operator_build is not None and self.operator_build.is_running else None
        )

    def is_ready(self, give_up: Callable[[], bool]) -> bool:
        """Wait until ranks can be started and the devices are free; returns false if `give_up` ended the wait.

        Raises:
            LaunchFailed, DevicesUnfit: this machine cannot run trials.
        """
        try:
            self.launcher.prepare(give_up)
        except LaunchFailed:
            if give_up():
                return False
            raise
        self.launcher.require_fit(give_up)
        return True


@dataclass(frozen=True)
class AttemptResult:
    """Finished attempt of a task: its result, its duration and the ranks that it occupied."""

    result: Measurement | ModelSummary | ResumeMeasurement | ProfilerRecording | RehearsalReport | Failure
    elapsed_s: float
    held_ranks: int
    """Number of ranks whose devices the attempt occupied."""
    log_tail: str | None

    @property
    def gpu_seconds(self) -> float:
        """GPU seconds of the attempt: seconds of wall time, times occupied ranks. In a gang of several hosts all ranks
        count, even if the attempt used one host only, because the other hosts wait."""
        return self.elapsed_s * self.held_ranks


def run_attempt(
    workplace: Workplace,
    task: Task,
    directory_of: Callable[[], TrialDir],
    limits: RunLimits,
    interrupted: Callable[[], str | None],
) -> AttemptResult | None:
    """Run a leased task and return the finished attempt; None when `interrupted` ended the run without a result.

    Raises:
        RanksAlive: ranks survived; the machine must take no further work.
    """
    ranks = 1 if isinstance(task, ModelSummaryTask | TargetRehearsalTask) else task.cluster.world_size
    # A gang holds all its hosts while a smaller trial runs on some of them.
    held_ranks = ranks if workplace.nodes == 1 else workplace.ranks
    try:
        _require_fit(task, workplace)
        _warn_of_emulation(task, workplace)
        directory = directory_of()
        if task.model.script is not None:
            directory.write_script(workplace.allowed.scripts[task.model.script])
        ended = run_to_end(workplace.launcher, task, directory, ranks, limits, interrupted, workplace.shared_dir)
    except (DiskFull, LaunchFailed, ValueError, OSError) as error:
        log.error("the run could not be started: %s", error)
        # An engine that ends a worker also ends its hosts, possibly while ranks are being started.
        if interrupted() is not None:
            return None
        return AttemptResult(
            Failure(kind=_start_failure_kind(error, workplace.launcher), message=str(error)[:4000]),
            0.0,
            held_ranks,
            None,
        )
    if ended.cause == "interrupted":
        # Written for the owner of the machine; the service learns of it by a released or expired lease.
        directory.write_outcome("interrupted")
        return None
    log.info(
        "conditions during the run: %s", ended.conditions.model_dump_json(exclude_none=True, exclude_defaults=True)
    )
    result = with_conditions(
        task, attempt_outcome(task, directory, ended, workplace.peak_flops), ended.conditions, workplace.peak_flops
    )
    return _finished(result, directory, ended, held_ranks)


def _start_failure_kind(error: Exception, launcher: Launcher) -> FailureKind:
    """Failure kind of a launch that could not be started. It is `node lost` if a host was lost during the launch,
    because the task is then not at fault."""
    lost = launcher.lost if isinstance(error, LaunchFailed) else None
    return FailureKind.NODE_LOST if lost is not None and lost.is_node else FailureKind.SETUP


def _finished(
    result: Measurement | ModelSummary | ResumeMeasurement | ProfilerRecording | RehearsalReport | Failure,
    directory: TrialDir,
    ended: RanksEnd,
    held_ranks: int,
) -> AttemptResult:
    if not isinstance(result, Failure):
        directory.write_outcome("complete")
        return AttemptResult(result, ended.elapsed_s, held_ranks, None)
    directory.write_outcome(result.kind)
    return AttemptResult(result, ended.elapsed_s, held_ranks, directory.log_tail(result.rank or 0))


def _warn_of_emulation(task: Task, workplace: Workplace) -> None:
    if isinstance(task, TrialTask):
        note = emulation_note(
            task.workload.precision, DeviceDtypes.from_fingerprint(workplace.fingerprint, workplace.matmul_flops)
        )
        if note is not None:
            log.warning(note)


def _require_fit(task: Task, workplace: Workplace) -> None:
    workplace.allowed.check(task.model)
    if isinstance(task, DerivedTrialTask) and task.model.script is not None:
        raise ValueError(
            f"model.script ({task.model.script}) cannot be restarted or traced: a script trains, saves and loads by itself"
        )
    if workplace.operator_build is not None:
        workplace.operator_build.require_built(task)
    if isinstance(task, TraceTask) and workplace.nodes > 1:
        raise ValueError(
            f"a worker over {workplace.nodes} hosts records no traces, which would lie on the hosts of its ranks; explain the study "
            "with a worker on one machine (--launcher local)"
        )
    # The cluster of a rehearsal is that of the target, which no worker has.
    if isinstance(task, ModelSummaryTask | TargetRehearsalTask):
        return
    if task.cluster.device != workplace.fingerprint.device:
        raise ValueError(
            f"cluster.device ({task.cluster.device}) is not what this machine has ({workplace.fingerprint.device}); "
            "run the trial on a worker of that kind"
        )
    if task.cluster.nodes > workplace.nodes:
        raise ValueError(
            f"cluster.nodes ({task.cluster.nodes}) must not exceed this worker's hosts ({workplace.nodes}); start a worker over "
            f"as many with --launcher {ENGINES_IN_WORDS} and --nodes"
        )
    if workplace.acquire_devices is not None and task.config.numa_binding != "none":
        raise ValueError(
            f"config.numa_binding ({task.config.numa_binding}) would bind ranks to cores outside this worker's partition of its host; "
            "search with numa_binding: none, or on a worker without --split"
        )
    ranks_per_host = workplace.ranks // workplace.nodes
    if task.cluster.gpus_per_node > ranks_per_host:
        raise ValueError(
            f"cluster.gpus_per_node ({task.cluster.gpus_per_node}) must not exceed this worker's ranks of a host ({ranks_per_host})"
        )
