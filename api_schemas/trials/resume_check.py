"""Whether a configuration goes on from its own checkpoint in new processes: the plan, what was measured, what it came to."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.trials.measurements import MOST_RECORDS, MOST_TIMES, DiskRate, StepRecord


class ResumePlan(Schema):
    """How long the run with a restart in its middle trains."""

    fewest_steps: int = Field(default=8, ge=1)
    """Before the checkpoint, however slow they are."""
    most_steps: int = Field(default=40, ge=1)
    max_train_s: float = Field(default=6.0, gt=0)
    """Beyond the fewest, no further step begins after this many seconds of steps."""
    steps_after: int = Field(default=5, ge=2, le=100)
    """Recorded twice: by the processes that saved, which go on, and by the new ones that loaded."""


class ResumeMeasurement(Schema):
    """One run with a restart in its middle. Times are the slowest rank's; allocator counts the largest rank's of each life, added up."""

    saved_at_step: int = Field(ge=1)
    """Steps trained before the checkpoint, which is where its data goes on."""
    losses: tuple[float, ...] = Field(max_length=MOST_TIMES)
    """Of every step of the processes that saved: one uninterrupted run."""
    went_on: tuple[StepRecord, ...] = Field(min_length=1, max_length=MOST_RECORDS)
    """The steps after the checkpoint in the processes that saved it."""
    resumed: tuple[StepRecord, ...] = Field(max_length=MOST_RECORDS)
    """The same steps in the processes that loaded it."""
    save_s: float = Field(ge=0, le=1e9)
    """Until all of it was on the disk."""
    load_s: float = Field(ge=0, le=1e9)
    """From the disk, where the kernel gave up its cached copy."""
    checkpoint_bytes: int = Field(ge=0, le=1 << 60)
    """On disk, all ranks."""
    checkpoint_files: int | None = Field(default=None, ge=0, le=1 << 30, examples=[5])
    """Of all ranks."""
    ranks: int | None = Field(default=None, ge=1, le=1 << 20, examples=[2])
    """That trained; None of a worker of a release that did not say."""
    writing_ranks: int | None = Field(default=None, ge=1, le=1 << 20, examples=[2])
    """Of these, the ones that wrote a tenth of an even share or more; None where the kernel does not count what goes to this disk."""
    disk: DiskRate | None = Field(default=None, examples=[{"write_bytes_per_s": 1.1e9, "read_bytes_per_s": 2.4e9}])
    """Of the disk that it was saved to, by one process just before."""
    allocator_retries: int | None = None
    """Times the CUDA allocator had to empty its cache to satisfy a request; None on CPU, which has no such allocator."""
    allocator_ooms: int | None = None
    """Requests it could not satisfy even then, whether or not somebody caught the error."""
    elapsed_s: float
    """From the launch of the first processes to the end of the last."""

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
    """What the check of a study's best came to."""

    PASSED = "passed"
    FAILED = "failed"
    """Only a baseline can stay the answer with it; a challenger is rejected."""
    NOT_CHECKED = "not_checked"


class ResumeCheck(Schema):
    """What the check of a study's best came to. Figures are None where nothing was measured."""

    trial_number: int
    outcome: ResumeOutcome
    reason: str | None = None
    """Why it failed or was not checked."""
    steps_before: int | None = None
    steps_after: int | None = None
    loss_difference: float | None = None
    """Largest relative difference of a loss after the restart."""
    save_s: float | None = None
    load_s: float | None = None
    checkpoint_bytes: int | None = None
    checkpoint_files: int | None = Field(default=None, examples=[5])
    """Of all ranks."""
    writing_ranks: int | None = Field(default=None, examples=[2])
    """None also where it is not known who wrote."""
    disk: DiskRate | None = Field(default=None, examples=[{"write_bytes_per_s": 1.1e9, "read_bytes_per_s": 2.4e9}])
    """What one process wrote to and read from the checkpoint's disk just before."""
    saving_fraction: float | None = Field(default=None, examples=[0.0002])
    """Of the time of a training that saves every `checkpoint_every_s` of the study and waits for it."""
    checkpoint_findings: tuple[str, ...] = Field(default=(), examples=[["a training that saves every 600 s waits …"]])
    """What is slow about it, and the remedy."""
    allocator_retries: int | None = None
    """None on CPU as well."""
    elapsed_s: float | None = None
