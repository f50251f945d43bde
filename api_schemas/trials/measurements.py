"""Schemas of a run's measurements, per rank and in total; None in a field means not measured."""

from typing import Annotated

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.names import ONE_LINE, PrintableText
from shardtune.api_schemas.protocol import Since
from shardtune.api_schemas.training.padding import Padding
from shardtune.api_schemas.training.sample_lengths import DATA_SINCE
from shardtune.api_schemas.training.workload import MOST_SAMPLES
from shardtune.api_schemas.trials.short_steps import SHORT_STEPS_SINCE, ShortStepTimes

MOST_GIB, MOST_STEPS, MOST_TIMES, MOST_RECORDS = 1e6, 10**9, 5000, 1000
"""Limits of a worker's report: maximum GiB of one rank, steps of one run, steps with a recorded time, and steps with a
full record. Real trials stay far below these limits, which also bound the size of a request."""


SKIPPED_STEPS_SINCE = 2
"""First protocol version whose workers count the steps that a loss scale skipped."""
COMPILED_FRAMES_SINCE = 2
"""First protocol version whose workers count compiled frames."""


class StepRecord(Schema):
    """Loss, gradient norm and parameter checksums of one training step, over the whole global batch."""

    step: int = Field(ge=0, le=MOST_STEPS)
    loss: float
    grad_norm: float | None
    """Global L2 norm of the gradients before clipping; None if a user's script did not report it."""
    parameter_sum: float | None
    """Sum of all trained master weights after the step, in fp64. None if the weights cannot be read, such as weights
    that a user's own script shards."""
    parameter_square_sum: float | None
    """Sum of the squares of all trained master weights after the step, in fp64."""


class Memory(Schema):
    """Peak memory of one rank (or the maximum over ranks), in GiB."""

    peak_allocated_gib: float | None = Field(ge=0, le=MOST_GIB)
    """Peak GiB of tensors allocated at the same time. On CUDA, it is read from the allocator. On CPU, torch.profiler
    measures it while the model is built and during the first two steps."""
    peak_reserved_gib: float | None = Field(default=None, ge=0, le=MOST_GIB)
    """Peak GiB that the caching allocator reserved; None on CPU ranks, which have no such allocator."""
    device_used_gib: float | None = Field(default=None, ge=0, le=MOST_GIB)
    """Memory in GiB that the device reports as used, including context and communication library; None on CPU ranks."""
    allocator_retries: int | None = Field(default=None, ge=0, le=MOST_STEPS)
    allocator_ooms: int | None = Field(default=None, ge=0, le=MOST_STEPS)
    """Number of requests for memory that the caching allocator could not satisfy, whether or not the error was caught.
    None on CPU ranks, and from workers of older releases."""


class CompiledFrames(Schema):
    """Numbers of what `torch.compile` (Dynamo) compiled on rank 0. A frame is one Python function with one set of
    assumptions (guards) about its arguments."""

    frames: int = Field(ge=0, le=MOST_STEPS)
    """Number of compiled frames. Equal blocks share them, so it does not grow with the number of blocks."""
    recompilations: int = Field(ge=0, le=MOST_STEPS)
    """Number of these frames that were compiled because an earlier one's guards did not hold."""
    graph_breaks: int = Field(ge=0, le=MOST_STEPS)
    """Number of places where Dynamo ended a graph because it could not compile what followed. Python runs there."""
    while_timed: int = Field(ge=0, le=MOST_STEPS)
    """Number of frames that were compiled during the steps whose times count, which then include the compilation."""


def compilation_details(compiled: CompiledFrames) -> str:
    """Say what compilation may have cost a run: `1 of them again; 2 graph breaks`."""
    again = f"{compiled.recompilations} of them again" if compiled.recompilations else "none again"
    breaks = counted(compiled.graph_breaks, "graph break") if compiled.graph_breaks else "no graph break"
    timed = [f"{compiled.while_timed} during the timed steps"] if compiled.while_timed else []
    return "; ".join((again, breaks, *timed))


class RankFigures(Schema):
    """Measurements of one rank in a run: its time and memory."""

    rank: int
    step_time_s: float | None
    """Seconds per step of this rank's own work, without waiting for the slowest rank: the median over the timed windows
    (groups of steps timed together). None from workers of older releases."""
    memory: Memory


class NodeFigures(Schema):
    """Measurements of the ranks of one host: the time of its slowest rank, and the memory of the rank that uses
    most."""

    host: str = Field(max_length=200, pattern=ONE_LINE)
    first_rank: int
    ranks: int
    step_time_s: float | None
    memory: Memory


class Measurement(Schema):
    """Result of one complete run. Times are those of the slowest rank; memory is the maximum over the ranks."""

    tokens_per_s_per_gpu: float = Field(gt=0, le=1e12)
    """Speed in tokens per second and GPU. Padding does not count: if the workload states `data`, only the samples' own
    tokens count."""
    step_time_s: float = Field(gt=0, le=1e9)
    """Seconds per optimizer step with the whole global batch: the median over the timed windows (groups of steps timed
    together)."""
    step_time_half_width_s: float = Field(ge=0, le=1e9)
    """Half-width in seconds of the 95 % interval of the mean step time within this run. It does not include the
    variation between runs, which is larger."""
    mfu: float | None = None
    """Model FLOPs utilisation: the model's FLOPs per second divided by the device's peak. None if one of them is not
    known."""
    memory: Memory
    wrap_time_s: float | None
    """Seconds that it took to build the model, wrap it for the backend and create the optimizer. None for a user's own
    script, which does not report it."""
    warmup_steps: int = Field(ge=0, le=MOST_STEPS)
    measured_steps: int = Field(ge=0, le=MOST_STEPS)
    window_step_times_s: tuple[float, ...] = Field(max_length=MOST_TIMES)
    """Seconds per step on the slowest rank, for each timed window (group of steps timed together)."""
    warmup_step_times_s: tuple[float, ...] = Field(default=(), max_length=MOST_TIMES)
    """Seconds of each warm-up step on the slowest rank. The steps whose losses and checksums are recorded come before
    the warm-up, and are not included."""
    ranks: tuple[RankFigures, ...] = Field(default=(), max_length=64)
    """Measurements of each rank, or of the first 64 if there are more."""
    nodes: tuple[NodeFigures, ...] = Field(default=(), max_length=1000)
    """Measurements of each host; empty with a single host."""
    trajectory: tuple[StepRecord, ...] = Field(max_length=MOST_RECORDS)
    losses: tuple[float, ...] = Field(max_length=MOST_TIMES)
    """Loss of each recorded step in order, beginning with the steps of `trajectory`; only the first 5,000 of a longer
    run."""
    gradient_accumulation: int = Field(ge=1, le=MOST_SAMPLES)
    elapsed_s: float = Field(ge=0, le=1e9)
    """Seconds from the launch of the ranks to the exit of the last one."""
    startup_s: float | None = None
    """Seconds from the launch of the ranks to the first forward pass of the slowest rank. A trial costs this time
    before its first step."""
    teardown_s: float | None = None
    """Seconds from the slowest rank's last step to the exit of the last rank."""
    is_steady: bool | None = None
    """Whether warm-up ended because the step time was steady. If False, it reached the maximum number of steps of the
    plan."""
    is_precise: bool | None = None
    """Whether timing ended because the interval of the step time was narrow enough for the run's purpose. If False, it
    reached a maximum of the plan."""
    is_pruned: bool = False
    """Whether the run ended during its warm-up, because it was certainly too slow (pruned). Each entry of
    `window_step_times_s` is then one warm-up step."""
    short_steps: Annotated[ShortStepTimes | None, Since(SHORT_STEPS_SINCE, may_be_dropped=True)] = None
    """Times of steps with fewer micro batches, from which `step_time_s` and `window_step_times_s` were extrapolated to
    whole steps. If None, whole steps were timed."""
    padding: Annotated[Padding | None, Since(DATA_SINCE, may_be_dropped=True)] = None
    """Padding in the timed steps; None if all samples have one length."""
    skipped_steps: Annotated[int, Since(SKIPPED_STEPS_SINCE, may_be_dropped=True)] = Field(
        default=0, ge=0, le=MOST_STEPS
    )
    """Number of steps whose gradients overflowed float16, so that the loss scale skipped their update. These steps were
    trained again, and are not among the timed ones."""
    compiled: Annotated[CompiledFrames | None, Since(COMPILED_FRAMES_SINCE, may_be_dropped=True)] = None
    """Numbers of what `torch.compile` compiled on rank 0. None if nothing is compiled, and from workers of older
    releases."""
    data_wait_fraction: float | None = None
    """Fraction of the timed seconds spent waiting for data, on the rank that waited longest. None if the data is
    created outside of the timed windows."""
    suspect: PrintableText | None = Field(default=None, max_length=1000)
    """Reason why the measurements cannot be true. Such a result is neither used as an answer nor given to the sampler.
    None if there is no doubt."""
    conditions: Conditions | None = None
    """State of the machine during the run, as observed by its worker."""
    disturbed: PrintableText | None = Field(default=None, max_length=1000)
    """Description of how the run was disturbed: by other programs or, if the worker could not observe them, as the
    spread of its timed windows shows. The run counts nevertheless, because the study's budget allowed no further
    repeat. Set by the service; None if the run was not disturbed."""
    cores_left: float | None = None
    """Number of CPU cores that other programs left for the run's ranks, at most as many as the ranks need. Set by the
    service; None if the worker could not observe it."""

    @property
    def is_disturbed_by_programs(self) -> bool:
        """Whether the run was disturbed by other programs that its worker observed; otherwise the cause is unknown."""
        # The cores that were left are known where load was judged; elsewhere only the spread of the timed windows was.
        return self.disturbed is not None and self.cores_left is not None

    @property
    def speed_range(self) -> tuple[float, float]:
        """Return both ends of the 95 % interval of the speed within this run, in tokens per second and GPU."""
        # The interval is symmetric in time, not in speed, so both ends are converted by themselves.
        speed, step, half_width = self.tokens_per_s_per_gpu, self.step_time_s, self.step_time_half_width_s
        # If the interval of the step time reaches zero, it gives no upper bound for the speed.
        high = speed * step / (step - half_width) if half_width < step else speed
        return speed * step / (step + half_width), high

    @property
    def is_extended(self) -> bool:
        """Whether the run timed steps with fewer micro batches, from which the time of a whole step was extrapolated."""
        return self.short_steps is not None and self.short_steps.accumulations is not None

    @property
    def whole_steps(self) -> float:
        """Return the number of all steps of the run. Steps with fewer micro batches count as the corresponding fraction
        of a whole step."""
        timed = self.warmup_steps + self.measured_steps
        if self.short_steps is None:
            return len(self.trajectory) + timed
        recorded = len(self.trajectory) * self.short_steps.parity_accumulation / self.gradient_accumulation
        pair = sum(self.short_steps.accumulations or (self.gradient_accumulation,))
        return recorded + timed * pair / self.gradient_accumulation
