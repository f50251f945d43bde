"""Schemas of the report that each rank of a run writes."""

from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.trials.diagnosis import MemoryMoment
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import CompiledFrames, Memory, StepRecord
from shardtune.api_schemas.trials.short_steps import ShortStepTimes


class DiskRate(Schema):
    """Read and write rates of a disk. One process measured them with one file, without the kernel's cache."""

    write_bytes_per_s: float = Field(gt=0, le=1e15, examples=[1.1e9])
    """Bytes per second at which a file is written, until all its data is on disk."""
    read_bytes_per_s: float = Field(gt=0, le=1e15, examples=[2.4e9])
    """Bytes per second at which a file is read. It was read from the disk if the kernel had dropped its cached copy."""


class CheckpointPart(Schema):
    """Figures of a rank that saved or loaded a checkpoint."""

    step: int
    """Number of steps trained before the checkpoint."""
    seconds: float
    checkpoint_bytes: int
    """Size of the checkpoint on disk in bytes, summed over ranks."""
    files: int | None = None
    """Number of checkpoint files, summed over ranks."""
    written_bytes: int | None = None
    """Bytes that this rank wrote, as counted by the kernel at the disk; None if the kernel does not count them."""
    disk: DiskRate | None = None
    """Read and write rates of the checkpoint's disk, measured by rank 0 just before it saved."""


class RankReport(Schema):
    """Report of one rank, which the rank writes to the folder of its trial as its last action."""

    rank: int
    status: Literal["complete", "failed"]
    failure: Failure | None = None
    first_forward_s: float | None = None
    """Seconds from the request to start the rank, on the rank's host, to its first forward pass; None if it is not
    known."""
    steps_ended_s: float | None = None
    """Seconds from the request to start the rank, on the rank's host, to the end of its last timed steps; None if it is
    not known."""
    cpu_s: float | None = None
    """Seconds of CPU time of the rank's process, from its start to its end and over all threads, and of the processes that
    it started, such as compilers."""
    pace_s: float | None = None
    """Seconds that the rank took for a small calculation before training. It is the same on every rank, so that slow
    ranks are detected."""
    is_steady: bool | None = None
    is_pruned: bool = False
    data_wait_s: float | None = None
    """Seconds that were spent in `next()` of torch DataLoaders during the timed steps. None if no DataLoader is used,
    or if all batches are created before the timing."""
    wrap_time_s: float | None = None
    memory: Memory | None = None
    warmup_steps: int = 0
    warmup_step_times_s: tuple[float, ...] = ()
    window_step_times_s: tuple[float, ...] = ()
    own_step_times_s: tuple[float, ...] = ()
    """Seconds per step of this rank's own clock, for each timed window (group of steps timed together).
    `window_step_times_s`, in contrast, has the times of the slowest rank."""
    measured_steps: int = 0
    short_steps: ShortStepTimes | None = None
    """Times of steps with fewer micro batches, from which the times of the windows were extrapolated to whole steps. If
    None, whole steps were timed."""
    trajectory: tuple[StepRecord, ...] = ()
    losses: tuple[float, ...] = ()
    skipped_steps: int = 0
    """Number of steps whose gradients overflowed float16, so that the loss scale skipped their update."""
    compiled: CompiledFrames | None = None
    """Numbers of what `torch.compile` compiled in this rank; None if the configuration compiles nothing."""
    moment: MemoryMoment | None = None
    """Memory of the rank at the moment of its peak; recorded only in a profiled run."""
    checkpoint: CheckpointPart | None = None
    """Figures of the checkpoint, if the task is a resume check; `trajectory` then contains the steps after the
    checkpoint."""
    versions: dict[str, str | None] = {}
