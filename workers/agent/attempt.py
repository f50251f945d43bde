"""Run one task on this machine from its trial directory to its outcome; the agent and `run-trial` both do this."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shardtune.api_schemas.base import Dtype
from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes, emulation
from shardtune.api_schemas.trials.diagnosis import Traced
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.leases import ModelSummaryTask, OtherUseOfTrial, Task, TrialTask
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.workers.agent.collect import outcome
from shardtune.workers.agent.resume_phases import run_to_end
from shardtune.workers.agent.supervise import Ended, RunLimits
from shardtune.workers.config.allowlist import Allowed
from shardtune.workers.launchers.base import Launcher, LaunchFailed
from shardtune.workers.machine.conditions import judged
from shardtune.workers.trial_dir import DiskFull, TrialDir

Turn = Callable[[bool, Callable[[], bool]], AbstractContextManager[bool]]
"""The devices for one run, and the host alone where the first says so; not had where the second gave up meanwhile."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Workplace:
    """What an attempt needs besides its task."""

    work_dir: Path
    launcher: Launcher
    fingerprint: Fingerprint
    ranks: int
    """Most ranks a trial may have here, on all hosts together."""
    peak_flops: float | None
    min_free_gib: float
    nodes: int = 1
    """Hosts; each has as many of the ranks."""
    shared_dir: Path | None = None
    """A folder that all of them see."""
    ends_in_s: Callable[[], float | None] = lambda: None
    """Until this worker must end, such as its job's time; None: nobody knows."""
    matmul_flops: Mapping[Dtype, float] = field(default_factory=dict)
    """Of one rank, as measured at the start; empty where nobody has."""
    allowed: Allowed = field(default_factory=Allowed)
    """Code of the user's own that a task may name."""
    turn: Turn | None = None
    """Where other workers of this machine have its devices, too; None: they are this worker's for its life."""

    @contextmanager
    def devices(self, is_alone: bool, give_up: Callable[[], bool]) -> Iterator[bool]:
        """The devices while a run lasts; False: `give_up` said so. Where others have them too, nothing touches them before."""
        if self.turn is None:
            yield True
            return
        with self.turn(is_alone, give_up) as are_ours:
            yield are_ours and self.is_ready(give_up)

    def is_ready(self, give_up: Callable[[], bool]) -> bool:
        """Wait until ranks can be started and the devices are free; False when `give_up` said so.

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
class Attempted:
    """An attempt that came to its end by itself or by our limits."""

    result: Measurement | ModelSummary | ResumeMeasurement | Traced | Failure
    elapsed_s: float
    held: int
    """Ranks."""
    log_tail: str | None

    @property
    def gpu_seconds(self) -> float:
        """Wall seconds × ranks held: those of the trial, or all of a gang's, whose other hosts wait."""
        return self.elapsed_s * self.held


def attempt(
    place: Workplace,
    task: Task,
    directory_of: Callable[[], TrialDir],
    limits: RunLimits,
    interrupted: Callable[[], str | None],
) -> Attempted | None:
    """Run a task; None when `interrupted` ended it, which is nobody's result.

    Raises:
        RanksAlive: ranks survived; the machine must take no further work.
    """
    ranks = 1 if isinstance(task, ModelSummaryTask) else task.cluster.world_size
    held = ranks if place.nodes == 1 else place.ranks
    try:
        _check_fits(task, place)
        _warn_of_emulation(task, place)
        directory = directory_of()
        if task.model.script is not None:
            directory.write_script(place.allowed.scripts[task.model.script])
        ended = run_to_end(place.launcher, task, directory, ranks, limits, interrupted, place.shared_dir)
    except (DiskFull, LaunchFailed, ValueError, OSError) as error:
        log.error("the run could not be started: %s", error)
        # Whoever ends a worker ends its hosts too, also while ranks are being started.
        if interrupted() is not None:
            return None
        return Attempted(
            Failure(kind=_why_not_begun(error, place.launcher), message=str(error)[:4000]), 0.0, held, None
        )
    if ended.cause == "interrupted":
        directory.write_outcome("interrupted")
        return None
    log.info("meanwhile: %s", ended.seen.model_dump_json(exclude_none=True, exclude_defaults=True))
    result = judged(task, outcome(task, directory, ended, place.peak_flops), ended.seen, place.peak_flops)
    return _finished(result, directory, ended, held)


def _why_not_begun(error: Exception, launcher: Launcher) -> FailureKind:
    """A host that was lost meanwhile is no fault of what was to run there."""
    lost = launcher.lost if isinstance(error, LaunchFailed) else None
    return FailureKind.NODE_LOST if lost is not None and lost.is_node else FailureKind.SETUP


def _finished(
    result: Measurement | ModelSummary | ResumeMeasurement | Traced | Failure,
    directory: TrialDir,
    ended: Ended,
    held: int,
) -> Attempted:
    if not isinstance(result, Failure):
        directory.write_outcome("complete")
        return Attempted(result, ended.elapsed_s, held, None)
    directory.write_outcome(result.kind)
    return Attempted(result, ended.elapsed_s, held, directory.log_tail(result.rank or 0))


def _warn_of_emulation(task: Task, place: Workplace) -> None:
    if isinstance(task, TrialTask):
        note = emulation(task.workload.precision, DeviceDtypes.of(place.fingerprint, place.matmul_flops))
        if note is not None:
            log.warning(note)


def _check_fits(task: Task, place: Workplace) -> None:
    place.allowed.check(task.model)
    if isinstance(task, OtherUseOfTrial) and task.model.script is not None:
        raise ValueError(
            f"model.script ({task.model.script}) cannot be restarted or traced: a script trains, saves and loads by itself"
        )
    if isinstance(task, ModelSummaryTask):
        return
    if task.cluster.device != place.fingerprint.device:
        raise ValueError(
            f"cluster.device ({task.cluster.device}) is not what this machine has ({place.fingerprint.device}); "
            "run the trial on a worker of that kind"
        )
    if task.cluster.nodes > place.nodes:
        raise ValueError(
            f"cluster.nodes ({task.cluster.nodes}) must not exceed this worker's hosts ({place.nodes}); start a worker over "
            "as many with --launcher slurm or ray and --nodes"
        )
    if place.turn is not None and task.config.numa_binding != "none":
        raise ValueError(
            f"config.numa_binding ({task.config.numa_binding}) would take ranks off the cores of this worker's part of its host; "
            "search with numa_binding: none, or on a worker without --split"
        )
    here = place.ranks // place.nodes
    if task.cluster.gpus_per_node > here:
        raise ValueError(
            f"cluster.gpus_per_node ({task.cluster.gpus_per_node}) must not exceed this worker's ranks of a host ({here})"
        )
