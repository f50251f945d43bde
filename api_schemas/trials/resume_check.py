"""Schemas of the resume check, which tests whether a configuration continues training from its own checkpoint in new
processes: plan, measurement and outcome."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.trials.measurements import MOST_RECORDS, MOST_TIMES, StepRecord
from shardtune.api_schemas.trials.rank_reports import DiskRate

MOST_BYTES_PER_PARAMETER = 16
"""Upper bound of a checkpoint's bytes per parameter. It contains a float32 master weight and two moments; ZeRO adds the
weights in the dtype of the computation."""


class ResumePlan(Schema):
    """Plan of a resume check: how many steps are trained before and after the restart from a checkpoint."""

    fewest_steps: int = Field(default=8, ge=1)
    """Minimum number of steps that a resume check trains before its checkpoint, even if they are slow."""
    most_steps: int = Field(default=40, ge=1)
    max_train_s: float = Field(default=6.0, gt=0)
    """Maximum seconds for which a resume check trains before its checkpoint. The minimum number of steps is trained in
    any case."""
    steps_after: int = Field(default=5, ge=2, le=100)
    """Number of steps after the checkpoint. They are trained and recorded twice: by the processes that saved the
    checkpoint and continue, and by new processes that load it."""


class ResumeMeasurement(Schema):
    """Measurement of a resume check, which launches ranks twice: to save a checkpoint, and to load it. Times are those
    of the slowest rank. Counts of the allocator are the largest over the ranks of a launch, summed over both
    launches."""

    saved_at_step: int = Field(ge=1)
    """Number of steps trained before the checkpoint. The processes that load it continue with the data of the next
    step."""
    losses: tuple[float, ...] = Field(max_length=MOST_TIMES)
    """Losses of all steps, before and after the checkpoint, in the processes that saved it and were not interrupted."""
    uninterrupted: tuple[StepRecord, ...] = Field(min_length=1, max_length=MOST_RECORDS)
    """Records of the steps after the checkpoint, from the processes that saved it and continued."""
    resumed: tuple[StepRecord, ...] = Field(max_length=MOST_RECORDS)
    """Records of the steps after the checkpoint, from the new processes that loaded it."""
    save_s: float = Field(ge=0, le=1e9)
    """Seconds that it took to save the checkpoint, until all its data was on disk."""
    load_s: float = Field(ge=0, le=1e9)
    """Seconds that it took to load the checkpoint. It was read from the disk if the kernel had dropped its cached
    copy."""
    checkpoint_bytes: int = Field(ge=0, le=1 << 60)
    """Size of the checkpoint on disk in bytes, summed over ranks."""
    checkpoint_files: int | None = Field(default=None, ge=0, le=1 << 30, examples=[5])
    """Number of checkpoint files, summed over ranks."""
    ranks: int | None = Field(default=None, ge=1, le=1 << 20, examples=[2])
    """Number of ranks that trained; None from workers of older releases, which did not report it."""
    writing_ranks: int | None = Field(default=None, ge=1, le=1 << 20, examples=[2])
    """Number of ranks that wrote a notable part of the checkpoint: at least a tenth of what each would write if all
    wrote equally. None if the kernel does not count writes to this disk."""
    disk: DiskRate | None = Field(default=None, examples=[{"write_bytes_per_s": 1.1e9, "read_bytes_per_s": 2.4e9}])
    """Rates at which one process read from and wrote to the checkpoint's disk, measured just before the checkpoint was
    saved."""
    allocator_retries: int | None = None
    """Number of times that the CUDA allocator had to empty its cache to satisfy a request. None on CPU ranks, which
    have no such allocator."""
    allocator_ooms: int | None = None
    """Number of requests that the CUDA allocator could not satisfy even after emptying its cache, whether or not the
    error was caught."""
    elapsed_s: float
    """Seconds from the launch of the first processes to the exit of the last."""

    @model_validator(mode="after")
    def _same_steps(self) -> Self:
        ours, theirs = [r.step for r in self.uninterrupted], [r.step for r in self.resumed]
        if ours != theirs or ours[0] != self.saved_at_step:
            raise ValueError(
                f"resumed (steps {theirs}) and uninterrupted (steps {ours}) must be the same steps, beginning with "
                f"saved_at_step ({self.saved_at_step})"
            )
        return self


class ResumeOutcome(StrEnum):
    """Outcome of the resume check of a study's best configuration."""

    PASSED = "passed"
    FAILED = "failed"
    """Training did not continue correctly from the checkpoint. A configuration that was to replace the baseline is then
    rejected; the baseline itself may still be the result."""
    NOT_CHECKED = "not_checked"


class ResumeCheck(Schema):
    """Result of the resume check, in which the study's best configuration saves a checkpoint and continues from it in
    new processes. A figure that is None was not measured."""

    trial_number: int
    outcome: ResumeOutcome
    reason: str | None = None
    """Reason why the resume check failed or was not made; None if it passed."""
    steps_before: int | None = None
    steps_after: int | None = None
    loss_difference: float | None = None
    """Largest relative difference between the losses of the processes that loaded the checkpoint and those of the
    uninterrupted run."""
    save_s: float | None = None
    load_s: float | None = None
    checkpoint_bytes: int | None = None
    checkpoint_files: int | None = Field(default=None, examples=[5])
    """Number of checkpoint files, summed over ranks."""
    writing_ranks: int | None = Field(default=None, examples=[2])
    """Number of ranks that wrote a notable part of the checkpoint; None if it is not known."""
    disk: DiskRate | None = Field(default=None, examples=[{"write_bytes_per_s": 1.1e9, "read_bytes_per_s": 2.4e9}])
    """Rates at which one process read from and wrote to the checkpoint's disk, measured just before the checkpoint was
    saved."""
    saving_fraction: float | None = Field(default=None, examples=[0.0002])
    """Fraction of the time of a training run that it would spend on saving checkpoints, if it saves one every
    `checkpoint_every_s` seconds (a field of the study) and waits for each."""
    checkpoint_findings: tuple[str, ...] = Field(default=(), examples=[["a training that saves every 600 s waits …"]])
    """Reasons why saving or loading the checkpoint is slow, each with its remedy."""
    allocator_retries: int | None = None
    """Number of times that the CUDA allocator had to empty its cache to satisfy a request. None if it is not known, and
    on CPU ranks."""
    elapsed_s: float | None = None
