"""Resume check: whether a configuration continues from its own checkpoint in new processes. Plan, measurement and
outcome."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.trials.measurements import MOST_RECORDS, MOST_TIMES, DiskRate, StepRecord


class ResumePlan(Schema):
    """Length of the run with a restart in its middle."""

    fewest_steps: int = Field(default=8, ge=1)
    """Least number of steps before the checkpoint, however slow they are."""
    most_steps: int = Field(default=40, ge=1)
    max_train_s: float = Field(default=6.0, gt=0)
    """Seconds of steps after which no further one begins, beyond the fewest."""
    steps_after: int = Field(default=5, ge=2, le=100)
    """Steps after the checkpoint. They are recorded twice: by the processes that saved it, which continue, and by
    the new ones that loaded it."""


class ResumeMeasurement(Schema):
    """Measurement of one run with a restart in its middle. Times are the slowest rank's; allocator counts are the
    largest rank's of each start, added up."""

    saved_at_step: int = Field(ge=1)
    """Steps trained before the checkpoint; its data continues there."""
    losses: tuple[float, ...] = Field(max_length=MOST_TIMES)
    """Losses of every step of the processes that saved: one uninterrupted run."""
    went_on: tuple[StepRecord, ...] = Field(min_length=1, max_length=MOST_RECORDS)
    """Steps after the checkpoint in the processes that saved it."""
    resumed: tuple[StepRecord, ...] = Field(max_length=MOST_RECORDS)
    """Steps after the checkpoint in the processes that loaded it."""
    save_s: float = Field(ge=0, le=1e9)
    """Seconds of saving until all of it was on the disk."""
    load_s: float = Field(ge=0, le=1e9)
    """Seconds of loading from the disk, where the kernel gave up its cached copy."""
    checkpoint_bytes: int = Field(ge=0, le=1 << 60)
    """Bytes on disk, all ranks."""
    checkpoint_files: int | None = Field(default=None, ge=0, le=1 << 30, examples=[5])
    """Number of files of all ranks."""
    ranks: int | None = Field(default=None, ge=1, le=1 << 20, examples=[2])
    """Number of ranks that trained; None from a worker of a release that did not report it."""
    writing_ranks: int | None = Field(default=None, ge=1, le=1 << 20, examples=[2])
    """Number of ranks that wrote a tenth of an even part or more; None where the kernel does not count writes to
    this disk."""
    disk: DiskRate | None = Field(default=None, examples=[{"write_bytes_per_s": 1.1e9, "read_bytes_per_s": 2.4e9}])
    """Rates of the checkpoint's disk, by one process just before."""
    allocator_retries: int | None = None
    """Times the CUDA allocator had to empty its cache to satisfy a request; None on CPU, which has no such
    allocator."""
    allocator_ooms: int | None = None
    """Requests that the allocator could not satisfy even then, whether or not the error was caught."""
    elapsed_s: float
    """Seconds from the launch of the first processes to the end of the last."""

    @model_validator(mode="after")
    def _same_steps(self) -> Self:
        ours, theirs = [r.step for r in self.went_on], [r.step for r in self.resumed]
        if ours != theirs or ours[0] != self.saved_at_step:
            raise ValueError(
                f"resumed (steps {theirs}) and went_on (steps {ours}) must be the same steps, beginning with "
                f"saved_at_step ({self.saved_at_step})"
            )
        return self


class ResumeOutcome(StrEnum):
    """Outcome of the resume check of a study's best."""

    PASSED = "passed"
    FAILED = "failed"
    """Resuming failed. Only a baseline can stay the answer then; a challenger is rejected."""
    NOT_CHECKED = "not_checked"


class ResumeCheck(Schema):
    """Result of the resume check of a study's best. Figures are None where nothing was measured."""

    trial_number: int
    outcome: ResumeOutcome
    reason: str | None = None
    """Reason why it failed or was not checked."""
    steps_before: int | None = None
    steps_after: int | None = None
    loss_difference: float | None = None
    """Largest relative difference of a loss after the restart."""
    save_s: float | None = None
    load_s: float | None = None
    checkpoint_bytes: int | None = None
    checkpoint_files: int | None = Field(default=None, examples=[5])
    """Number of files of all ranks."""
    writing_ranks: int | None = Field(default=None, examples=[2])
    """Number of ranks that wrote; None also where that is unknown."""
    disk: DiskRate | None = Field(default=None, examples=[{"write_bytes_per_s": 1.1e9, "read_bytes_per_s": 2.4e9}])
    """Rates of the checkpoint's disk, by one process just before."""
    saving_fraction: float | None = Field(default=None, examples=[0.0002])
    """Fraction of the time of a training that saves every `checkpoint_every_s` of the study and waits for it."""
    checkpoint_findings: tuple[str, ...] = Field(default=(), examples=[["a training that saves every 600 s waits …"]])
    """Reasons why saving or loading is slow, each with its remedy."""
    allocator_retries: int | None = None
    """Times the CUDA allocator had to empty its cache; None on CPU as well."""
    elapsed_s: float | None = None
