"""Measurements of a run, per rank and as a whole. A number that was not measured is None."""

from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.names import ONE_LINE
from shardtune.api_schemas.training.workload import MOST_SAMPLES
from shardtune.api_schemas.trials.diagnosis import MemoryMoment
from shardtune.api_schemas.trials.failures import Failure

MOST_GIB, MOST_STEPS, MOST_TIMES, MOST_RECORDS = 1e6, 10**9, 5000, 1000
"""Upper bounds of a report: GiB of one rank, steps of one run, steps with a time each, and steps with a full record.
They are far more than trials have, and no more than a body may hold."""


StepTimeRange = tuple[float, float]
"""Shortest and longest seconds per step."""


class MeasurePlan(Schema):
    """Length of a run's warm-up and measurement."""

    parity_steps: int = Field(default=3, ge=2, le=100)
    """First steps whose loss, gradient norm and parameter checksum are recorded; memory is profiled over two of
    them."""
    max_warmup_steps: int = Field(default=8, ge=1)
    """Most warm-up steps; warm-up ends earlier when the step time is steady."""
    window_steps: int = Field(default=3, ge=1)
    """Steps timed as one; losses stay on the device until a window ends. Fewer where steps are slow
    (`max_measure_s`), more where they are short (`min_measure_s`)."""
    min_windows: int = Field(default=3, ge=2)
    max_windows: int = Field(default=8, ge=2)
    target_half_width: float = Field(default=0.02, gt=0)
    """Relative half-width of the windows' 95 % interval below which timing stops."""
    max_measure_s: float = Field(default=12.0, gt=0)
    """Seconds of timed windows after which no new one begins (min_windows are always run, of one step if need be)."""
    min_measure_s: float = Field(default=1.0, ge=0)
    """Least seconds of the first `min_windows` windows together: steps of milliseconds are counted by the hundred."""
    undecided_s: StepTimeRange | None = None
    """Range of step times that needs a precise measurement. Timing also stops once the windows' 95 % interval lies
    outside. None: no range."""
    prune_above_s: float | None = Field(default=None, gt=0)
    """Step time above which a run is pruned: it ends within its warm-up once its steps, three at least, are all
    longer, and so is the lower end of the 95 % interval of their mean. None: it is timed to its end."""

    def is_precise_enough(self, step_time_s: float, half_width_s: float) -> bool:
        """Whether a step time with this half-width is known precisely enough."""
        if half_width_s <= self.target_half_width * step_time_s:
            return True
        if self.undecided_s is None:
            return False
        shortest, longest = self.undecided_s
        return step_time_s + half_width_s < shortest or step_time_s - half_width_s > longest


class StepRecord(Schema):
    """One step of the numeric trajectory, over the whole global batch."""

    step: int = Field(ge=0, le=MOST_STEPS)
    loss: float
    grad_norm: float | None
    """Global L2 norm before clipping; None where a script did not report it."""
    parameter_sum: float | None
    """Sum of all trained master weights after the step, in fp64; None where they cannot be read (a script's own
    sharding)."""
    parameter_square_sum: float | None
    """Sum of the squares of the master weights, in fp64."""


class Memory(Schema):
    """Peak memory of one rank (or the maximum over ranks), in GiB."""

    peak_allocated_gib: float | None = Field(ge=0, le=MOST_GIB)
    """Tensors alive at once. CUDA: the allocator's counter; CPU: torch.profiler's, over build and the first two
    steps."""
    peak_reserved_gib: float | None = Field(default=None, ge=0, le=MOST_GIB)
    """Memory held by the caching allocator; None on CPU, which has none."""
    device_used_gib: float | None = Field(default=None, ge=0, le=MOST_GIB)
    """Memory that the device reports in use, context and communication library included; None on CPU."""
    allocator_retries: int | None = Field(default=None, ge=0, le=MOST_STEPS)
    allocator_ooms: int | None = Field(default=None, ge=0, le=MOST_STEPS)
    """Requests that the caching allocator could not satisfy, caught or not; None on CPU and from older workers."""


class RankFigures(Schema):
    """Measurements of one rank."""

    rank: int
    step_time_s: float | None
    """Median over windows of the rank's own seconds per step, before the slowest rank's is taken; None from older
    workers."""
    memory: Memory


class NodeFigures(Schema):
    """Measurements of the ranks of one host: time of the slowest, memory of the fullest."""

    host: str = Field(max_length=200, pattern=ONE_LINE)
    first_rank: int
    ranks: int
    step_time_s: float | None
    memory: Memory


class Measurement(Schema):
    """Result of one complete run. Time is the slowest rank's, memory the maximum over ranks."""

    tokens_per_s_per_gpu: float = Field(gt=0, le=1e12)
    step_time_s: float = Field(gt=0, le=1e9)
    """Median over windows of the seconds per optimizer step."""
    step_time_half_width_s: float = Field(ge=0, le=1e9)
    """Half the 95 % interval of the mean step time within this run (between runs it varies more)."""
    mfu: float | None = None
    """Model FLOPs per second over the device's peak; None where either is unknown."""
    memory: Memory
    wrap_time_s: float | None
    """Time to build the model, wrap it and make the optimizer; None for a script, which does not report it."""
    warmup_steps: int = Field(ge=0, le=MOST_STEPS)
    measured_steps: int = Field(ge=0, le=MOST_STEPS)
    window_step_times_s: tuple[float, ...] = Field(max_length=MOST_TIMES)
    """Seconds per step of each timed window, slowest rank."""
    warmup_step_times_s: tuple[float, ...] = Field(default=(), max_length=MOST_TIMES)
    """Seconds of each warm-up step, slowest rank; the recorded first steps come before them."""
    ranks: tuple[RankFigures, ...] = Field(default=(), max_length=64)
    """Measurements of each rank; of more than 64 ranks the first 64."""
    nodes: tuple[NodeFigures, ...] = Field(default=(), max_length=1000)
    """Measurements of each host, where there are several."""
    trajectory: tuple[StepRecord, ...] = Field(max_length=MOST_RECORDS)
    losses: tuple[float, ...] = Field(max_length=MOST_TIMES)
    """Loss of every step in order, trajectory steps first."""
    gradient_accumulation: int = Field(ge=1, le=MOST_SAMPLES)
    elapsed_s: float = Field(ge=0, le=1e9)
    """Seconds from the launch of the ranks to the end of the last one."""
    startup_s: float | None = None
    """Seconds from the launch to the slowest rank's first forward: the cost of a trial before its first step."""
    teardown_s: float | None = None
    """Seconds from the slowest rank's last step to the end of the last rank."""
    is_steady: bool | None = None
    """Whether warm-up ended because the step time was steady, not because the plan allowed no more of it."""
    is_precise: bool | None = None
    """Whether timing ended because the interval was narrow enough for the run's purpose, not because the plan
    allowed no more windows."""
    is_pruned: bool = False
    """Whether the run was ended within its warm-up, as surely slower than a trial has to be: each window is one step
    of it."""
    data_wait_fraction: float | None = None
    """Fraction of the timed windows spent waiting for data, on the rank that waited most; None where data is made
    outside of them."""
    suspect: str | None = Field(default=None, max_length=1000)
    """Reason why these numbers cannot be true; such a measurement neither wins nor teaches."""
    conditions: Conditions | None = None
    """Conditions of the machine during the run, as its worker observed them."""
    disturbed: str | None = Field(default=None, max_length=1000)
    """Disturbance of a run that counts all the same, because it had been repeated often enough; set by the service."""


class DiskRate(Schema):
    """Rates at which one process writes to a disk and reads back, in one file and past the kernel's cache."""

    write_bytes_per_s: float = Field(gt=0, le=1e15, examples=[1.1e9])
    """Rate of writing until all is on the disk."""
    read_bytes_per_s: float = Field(gt=0, le=1e15, examples=[2.4e9])
    """Rate of reading from the disk, where the kernel gave up its cached copy."""


class CheckpointPart(Schema):
    """Figures of one rank that saved or loaded a checkpoint."""

    step: int
    """Steps trained before the checkpoint."""
    seconds: float
    checkpoint_bytes: int
    """Bytes on disk, all ranks."""
    files: int | None = None
    """Number of files of all ranks."""
    written_bytes: int | None = None
    """Bytes written by this rank, as the kernel counts writes to disks; None where it counts nothing."""
    disk: DiskRate | None = None
    """Disk rates measured by rank 0, just before it saved."""


class RankReport(Schema):
    """Report that one rank writes to its trial directory as its last act."""

    rank: int
    status: Literal["complete", "failed"]
    failure: Failure | None = None
    first_forward_s: float | None = None
    """Seconds since the rank's own host was told to start it; None where that time is unknown."""
    steps_ended_s: float | None = None
    """Seconds from the same start to the end of the last timed window."""
    cpu_s: float | None = None
    """CPU time of the rank's process over its life, all threads."""
    pace_s: float | None = None
    """Seconds for a small calculation before training, the same on every rank."""
    is_steady: bool | None = None
    is_pruned: bool = False
    data_wait_s: float | None = None
    """Seconds inside the `next()` of torch DataLoaders within the timed windows; None where no batch comes from one,
    or all are made before."""
    wrap_time_s: float | None = None
    memory: Memory | None = None
    warmup_steps: int = 0
    warmup_step_times_s: tuple[float, ...] = ()
    window_step_times_s: tuple[float, ...] = ()
    own_step_times_s: tuple[float, ...] = ()
    """Seconds per step of each timed window by this rank's own clock; the windows above are the slowest rank's."""
    measured_steps: int = 0
    trajectory: tuple[StepRecord, ...] = ()
    losses: tuple[float, ...] = ()
    moment: MemoryMoment | None = None
    """Memory at its fullest, of a traced run."""
    checkpoint: CheckpointPart | None = None
    """Checkpoint of a resume task only; `trajectory` then holds the steps after it."""
    versions: dict[str, str | None] = {}


class Progress(Schema):
    """Progress of a run, as its rank 0 last wrote it."""

    phase: Literal["starting", "building", "warming_up", "measuring", "training", "saving", "loading", "finishing"]
    step: int = 0
    tokens_per_s_per_gpu: float | None = None
    """Speed in the windows timed so far."""
    step_s: float | None = None
    """Seconds of the last step, or one of the last window's, as rank 0 measured them; None before there was one."""
    steps_left: int | None = None
    """Least number of steps that the plan still needs."""
