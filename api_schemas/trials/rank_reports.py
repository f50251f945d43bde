"""Schemas of the report that each rank of a run writes."""

from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.trials.diagnosis import MemoryMoment
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Memory, StepRecord
from shardtune.api_schemas.trials.short_steps import ShortStepTimes


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
    """Times of short steps (fewer micro batches), from which the windows' times were extended to whole steps; None:
    whole steps were timed."""
    trajectory: tuple[StepRecord, ...] = ()
    losses: tuple[float, ...] = ()
    skipped_steps: int = 0
    """Number of steps whose gradients overflowed float16, so that the loss scale skipped their update."""
    moment: MemoryMoment | None = None
    """Memory of the rank at its peak, in a profiled run."""
    checkpoint: CheckpointPart | None = None
    """Checkpoint figures of a resume task; `trajectory` then contains the steps after the checkpoint."""
    versions: dict[str, str | None] = {}
