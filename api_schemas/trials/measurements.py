"""Schemas of a run's measurements, per rank and in total; None in a field means not measured."""

from typing import Annotated, Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.conditions import MOST_PROGRAMS, Conditions, ProgramLoad
from shardtune.api_schemas.names import ONE_LINE, PrintableText
from shardtune.api_schemas.protocol import Since
from shardtune.api_schemas.training.padding import Padding
from shardtune.api_schemas.training.sample_lengths import DATA_SINCE
from shardtune.api_schemas.training.workload import MOST_SAMPLES
from shardtune.api_schemas.trials.diagnosis import MemoryMoment
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.short_steps import SHORT_STEPS_SINCE, ShortSteps, ShortStepTimes

MOST_GIB, MOST_STEPS, MOST_TIMES, MOST_RECORDS = 1e6, 10**9, 5000, 1000
"""Limits of a report: maximum GiB of one rank, steps of one run, steps with a recorded time, and steps with a full
record. Real trials stay far below; a request body could not contain more."""


SKIPPED_STEPS_SINCE = 2
"""First protocol version whose workers count the steps that a loss scale skipped."""
LOSS_STEPS_SINCE = 2
"""First protocol version whose workers keep the losses of many first steps."""
MOST_LOSS_STEPS = 2000
"""Most first steps whose losses a run keeps."""
StepTimeRange = tuple[float, float]
"""Shortest and longest step time in seconds."""


class MeasurePlan(Schema):
    """Plan of a run: length of warm-up and measurement."""

    parity_steps: int = Field(default=3, ge=2, le=100)
    """Number of first steps whose loss, gradient norm and parameter checksum are recorded; two of them are profiled for
    memory."""
    max_warmup_steps: int = Field(default=8, ge=1)
    """Maximum number of warm-up steps; warm-up ends earlier once the step time is steady."""
    window_steps: int = Field(default=3, ge=1)
    """Number of steps timed together as one window, between which losses stay on the device. Fewer if steps are slow
    (`max_measure_s`), more if they are short (`min_measure_s`)."""
    min_windows: int = Field(default=3, ge=2)
    max_windows: int = Field(default=8, ge=2)
    target_half_width: float = Field(default=0.02, gt=0)
    """Relative half-width of the 95 % interval over windows below which timing stops."""
    max_measure_s: float = Field(default=12.0, gt=0)
    """Seconds of timed windows after which no new window begins; `min_windows` always run, with a single step each if
    necessary."""
    min_measure_s: float = Field(default=1.0, ge=0)
    """Minimum total seconds of the first `min_windows` windows, so that steps of milliseconds are timed by the
    hundred."""
    undecided_s: StepTimeRange | None = None
    """Range of step times in seconds that needs a precise measurement. Timing also stops once the 95 % interval over
    windows lies outside the range. None: no range."""
    prune_above_s: float | None = Field(default=None, gt=0)
    """Step time in seconds above which a run is pruned: it ends during warm-up once all of its steps (at least three),
    and the lower end of the 95 % interval of their mean, are longer. None: never pruned."""
    loss_steps: Annotated[int, Since(LOSS_STEPS_SINCE)] = Field(default=0, ge=0, le=MOST_LOSS_STEPS)
    """Number of first steps whose losses are kept, untimed and before the warm-up, the fully recorded ones included. Not
    above `parity_steps`: the recorded ones alone."""
    short_steps: Annotated[ShortSteps | None, Since(SHORT_STEPS_SINCE)] = None
    """Micro batches of the run's steps, where they are fewer than the workload's; None: whole steps."""

    @property
    def is_extended(self) -> bool:
        """Whether the step time is extended from steps with fewer micro batches."""
        return self.short_steps is not None and self.short_steps.accumulations is not None

    def whole_steps(self, timed: int, whole: int) -> float:
        """Number of whole steps of `whole` micro batches with as many as the recorded and `timed` times together."""
        short = self.short_steps
        if short is None:
            return max(self.parity_steps, self.loss_steps) + timed
        recorded = self.parity_steps * short.parity_accumulation
        return (recorded + timed * sum(short.accumulations or (whole,))) / whole

    def is_precise_enough(self, step_time_s: float, half_width_s: float) -> bool:
        """Whether a step time with this half-width is measured precisely enough under the plan."""
        if half_width_s <= self.target_half_width * step_time_s:
            return True
        if self.undecided_s is None:
            return False
        shortest, longest = self.undecided_s
        return step_time_s + half_width_s < shortest or step_time_s - half_width_s > longest


class StepRecord(Schema):
    """Loss, gradient norm and parameter checksums of one training step, over the whole global batch."""

    step: int = Field(ge=0, le=MOST_STEPS)
    loss: float
    grad_norm: float | None
    """Global L2 norm of the gradients before clipping; None if a user's script did not report it."""
    parameter_sum: float | None
    """Sum of all trained master weights after the step, in fp64; None if the weights cannot be read (sharded by the
    user's script)."""
    parameter_square_sum: float | None
    """Sum of the squares of the master weights after the step, in fp64."""


class Memory(Schema):
    """Peak memory of one rank (or the maximum over ranks), in GiB."""

    peak_allocated_gib: float | None = Field(ge=0, le=MOST_GIB)
    """Peak GiB of tensors allocated at the same time. CUDA: the allocator's counter; CPU: measured by torch.profiler
    over model build and the first two steps."""
    peak_reserved_gib: float | None = Field(default=None, ge=0, le=MOST_GIB)
    """Peak GiB reserved by the caching allocator; None on CPU, which has none."""
    device_used_gib: float | None = Field(default=None, ge=0, le=MOST_GIB)
    """GiB that the device reports in use, including context and communication library; None on CPU."""
    allocator_retries: int | None = Field(default=None, ge=0, le=MOST_STEPS)
    allocator_ooms: int | None = Field(default=None, ge=0, le=MOST_STEPS)
    """Number of requests that the caching allocator could not satisfy, whether or not the error was caught; None on CPU
    and from workers of older releases."""


class RankFigures(Schema):
    """Measurements of one rank in a run: its time and memory."""

    rank: int
    step_time_s: float | None
    """Median over timed windows of this rank's own seconds per step, not of the slowest rank; None from workers of
    older releases."""
    memory: Memory


class NodeFigures(Schema):
    """Measurements of the ranks of one host: time of its slowest rank, memory of the rank that uses the most."""

    host: str = Field(max_length=200, pattern=ONE_LINE)
    first_rank: int
    ranks: int
    step_time_s: float | None
    memory: Memory


class Measurement(Schema):
    """Result of one complete run. Times are the slowest rank's, memory is the maximum over ranks."""

    tokens_per_s_per_gpu: float = Field(gt=0, le=1e12)
    """Tokens per second and GPU that are no padding: with `workload.data` the samples' own tokens alone."""
    step_time_s: float = Field(gt=0, le=1e9)
    """Step time: median over the timed windows of the seconds per optimizer step with the whole global batch."""
    step_time_half_width_s: float = Field(ge=0, le=1e9)
    """Half-width of the 95 % interval of the mean step time within this run, in seconds (variation between runs is
    larger)."""
    mfu: float | None = None
    """Model FLOPs utilisation: model FLOPs per second over the device's peak; None if either is unknown."""
    memory: Memory
    wrap_time_s: float | None
    """Seconds to build the model, wrap it for the backend and create the optimizer; None for a user's script, which
    does not report it."""
    warmup_steps: int = Field(ge=0, le=MOST_STEPS)
    measured_steps: int = Field(ge=0, le=MOST_STEPS)
    window_step_times_s: tuple[float, ...] = Field(max_length=MOST_TIMES)
    """Seconds per step in each timed window, on the slowest rank."""
    warmup_step_times_s: tuple[float, ...] = Field(default=(), max_length=MOST_TIMES)
    """Seconds of each warm-up step, on the slowest rank; the fully recorded first steps come before them."""
    ranks: tuple[RankFigures, ...] = Field(default=(), max_length=64)
    """Measurements of each rank, or of the first 64 if there are more."""
    nodes: tuple[NodeFigures, ...] = Field(default=(), max_length=1000)
    """Measurements of each host; empty with a single host."""
    trajectory: tuple[StepRecord, ...] = Field(max_length=MOST_RECORDS)
    losses: tuple[float, ...] = Field(max_length=MOST_TIMES)
    """Loss of every step in order, beginning with the fully recorded first steps."""
    gradient_accumulation: int = Field(ge=1, le=MOST_SAMPLES)
    elapsed_s: float = Field(ge=0, le=1e9)
    """Seconds from the launch of the ranks to the exit of the last one."""
    startup_s: float | None = None
    """Seconds from the launch of the ranks to the slowest rank's first forward pass: the cost of a trial before its
    first step."""
    teardown_s: float | None = None
    """Seconds from the slowest rank's last step to the exit of the last rank."""
    is_steady: bool | None = None
    """Whether warm-up ended because the step time was steady; False if it reached the plan's maximum."""
    is_precise: bool | None = None
    """Whether timing ended because the interval was narrow enough for the run's purpose; False if it reached the plan's
    maximum."""
    is_pruned: bool = False
    """Whether the run was ended during warm-up because it was certainly too slow; each window is then one warm-up
    step."""
    short_steps: Annotated[ShortStepTimes | None, Since(SHORT_STEPS_SINCE, may_be_dropped=True)] = None
    """Step times from which `step_time_s` and `window_step_times_s` were extended; None: whole steps were timed."""
    padding: Annotated[Padding | None, Since(DATA_SINCE, may_be_dropped=True)] = None
    """Padding of the timed steps; None where all samples have one length."""
    skipped_steps: Annotated[int, Since(SKIPPED_STEPS_SINCE, may_be_dropped=True)] = Field(
        default=0, ge=0, le=MOST_STEPS
    )
    """Number of steps whose gradients overflowed float16, so that the loss scale skipped their update. They were trained
    again, and are not among the timed steps."""
    data_wait_fraction: float | None = None
    """Fraction of the timed windows spent waiting for data, on the rank that waited most; None if data is created
    outside of the windows."""
    suspect: PrintableText | None = Field(default=None, max_length=1000)
    """Reason why the measurements are impossible; such a result is neither used as an answer nor by the sampler."""
    conditions: Conditions | None = None
    """State of the machine during the run, as observed by its worker."""
    disturbed: PrintableText | None = Field(default=None, max_length=1000)
    """Disturbance by other programs in a run that still counts, because the study's budget allowed no further repeat;
    set by the service."""
    cores_left: float | None = None
    """CPU cores that other programs left for the run's ranks, at most as many as the ranks need; None if the worker
    could not observe it. Set by the service."""

    @property
    def speed_range(self) -> tuple[float, float]:
        """Ends of the 95 % interval of the speed within this run, in tokens per second and GPU."""
        # The interval is symmetric in time, not in speed, so both ends are converted by themselves.
        speed, step, half_width = self.tokens_per_s_per_gpu, self.step_time_s, self.step_time_half_width_s
        # If the interval of the step time reaches zero, it gives no upper bound for the speed.
        high = speed * step / (step - half_width) if half_width < step else speed
        return speed * step / (step + half_width), high

    @property
    def is_extended(self) -> bool:
        """Whether the step time was extended from steps with fewer micro batches."""
        return self.short_steps is not None and self.short_steps.accumulations is not None

    @property
    def whole_steps(self) -> float:
        """Number of whole steps with as many micro batches as all steps of the run together."""
        timed = self.warmup_steps + self.measured_steps
        if self.short_steps is None:
            return len(self.trajectory) + timed
        recorded = len(self.trajectory) * self.short_steps.parity_accumulation / self.gradient_accumulation
        pair = sum(self.short_steps.accumulations or (self.gradient_accumulation,))
        return recorded + timed * pair / self.gradient_accumulation


class DiskRate(Schema):
    """Read and write rates of a disk, measured by one process with one file, bypassing the kernel's cache."""

    write_bytes_per_s: float = Field(gt=0, le=1e15, examples=[1.1e9])
    """Bytes per second of writing, until all data is on disk."""
    read_bytes_per_s: float = Field(gt=0, le=1e15, examples=[2.4e9])
    """Bytes per second of reading, from the disk if the kernel dropped its cached copy."""


class CheckpointPart(Schema):
    """Figures of one rank that saved or loaded a checkpoint."""

    step: int
    """Number of steps trained before the checkpoint."""
    seconds: float
    checkpoint_bytes: int
    """Size of the checkpoint on disk in bytes, summed over ranks."""
    files: int | None = None
    """Number of checkpoint files, summed over ranks."""
    written_bytes: int | None = None
    """Bytes written by this rank, from the kernel's count of writes to disks; None if the kernel does not count
    them."""
    disk: DiskRate | None = None
    """Read and write rates of the disk, measured by rank 0 just before it saved."""


class RankReport(Schema):
    """Report of one rank, written to its trial directory as its last action."""

    rank: int
    status: Literal["complete", "failed"]
    failure: Failure | None = None
    first_forward_s: float | None = None
    """Seconds from the rank's start request on its host to its first forward pass; None if unknown."""
    steps_ended_s: float | None = None
    """Seconds from the rank's start request on its host to the end of the last timed window."""
    cpu_s: float | None = None
    """CPU seconds of the rank's process over its lifetime, all threads."""
    pace_s: float | None = None
    """Seconds for a small calculation before training, the same on every rank, to detect slow ranks."""
    is_steady: bool | None = None
    is_pruned: bool = False
    data_wait_s: float | None = None
    """Seconds spent in `next()` of torch DataLoaders within the timed windows; None if no DataLoader is used, or all
    batches are created before."""
    wrap_time_s: float | None = None
    memory: Memory | None = None
    warmup_steps: int = 0
    warmup_step_times_s: tuple[float, ...] = ()
    window_step_times_s: tuple[float, ...] = ()
    own_step_times_s: tuple[float, ...] = ()
    """Seconds per step in each timed window by this rank's own clock, while the other window times are the slowest
    rank's."""
    measured_steps: int = 0
    short_steps: ShortStepTimes | None = None
    """Step times from which the windows' times were extended, in a run with short steps."""
    trajectory: tuple[StepRecord, ...] = ()
    losses: tuple[float, ...] = ()
    skipped_steps: int = 0
    """Number of steps whose gradients overflowed float16, so that the loss scale skipped their update."""
    moment: MemoryMoment | None = None
    """Memory of the rank at its peak, in a profiled run."""
    checkpoint: CheckpointPart | None = None
    """Checkpoint figures of a resume task; `trajectory` then contains the steps after the checkpoint."""
    versions: dict[str, str | None] = {}


class Progress(Schema):
    """Progress of a run, as last written by rank 0."""

    phase: Literal[
        "waiting_for_quiet",
        "starting",
        "building",
        "warming_up",
        "measuring",
        "training",
        "saving",
        "loading",
        "finishing",
    ]
    step: int = 0
    tokens_per_s_per_gpu: float | None = None
    """Speed in tokens per second and GPU over the windows timed so far."""
    step_s: float | None = None
    """Seconds of the last step, or mean seconds per step of the last window, measured by rank 0; None before the first
    step."""
    steps_left: int | None = None
    """Minimum number of steps that the plan still needs."""
    foreign_cpu_cores: float | None = Field(default=None, ge=0, le=1e6)
    """CPU cores that other programs use, while the run waits until the machine is quiet; None in other phases."""
    foreign_programs: tuple[ProgramLoad, ...] = Field(default=(), max_length=MOST_PROGRAMS)
    """Programs that keep the machine busy while the run waits, busiest first."""
    waited_s: float | None = Field(default=None, ge=0, le=1e9)
    """Seconds that the run's attempts have waited so far until the machine is quiet; None if they did not wait."""
