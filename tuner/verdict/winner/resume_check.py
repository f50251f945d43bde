"""Resume check: whether the study's recommended trial continues from its own checkpoint, when to run the check, and how
to read its result."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.training.float8 import Float8Recipe
from shardtune.api_schemas.training.optimizers import AdamW, OptimizerSchema
from shardtune.api_schemas.training.workload import Precision
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.resume_check import ResumeCheck, ResumeMeasurement, ResumeOutcome
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner import objective
from shardtune.tuner.verdict import parity
from shardtune.tuner.verdict.winner import checkpoint_cost

_ADAMW = AdamW()
_UNFIT = {
    FailureKind.OOM,
    FailureKind.OVER_LIMIT,
    FailureKind.ILLEGAL,
    FailureKind.NUMERICS,
    FailureKind.CRASH,
    FailureKind.RANK_LOST,
}
"""Kinds of failures of a resume run (training continued from a checkpoint) that reject the configuration. A failure of
the platform rejects it only if a second try fails as well; a full disk or a lost worker never does."""


@dataclass(frozen=True)
class ResumeRun:
    """Resume run of a trial: a second training run that starts from the trial's own checkpoint."""

    trial: int
    state: TrialState
    measurement: ResumeMeasurement | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class CheckDue:
    """Request to run the resume check of the study's winner now."""


def resume_failure(
    measured: ResumeMeasurement,
    precision: Precision,
    optimizer: OptimizerSchema = _ADAMW,
    float8: Float8Recipe | None = None,
) -> Failure | None:
    """Description of how the resumed processes failed to continue the same training within the memory limit; None where
    they succeeded."""
    bounds = parity.tolerance(precision, optimizer, float8)
    for continued, resumed in zip(measured.uninterrupted, measured.resumed, strict=True):
        reason = parity.step_difference(continued, resumed, bounds, "the processes that saved")
        if reason is not None:
            message = f"training changes after a resume from its checkpoint in new processes: {reason}"
            return Failure(kind=FailureKind.NUMERICS, message=message)
    period = f"over {len(measured.losses)} steps and a restart"
    return objective.allocator_retry_failure(measured.allocator_retries, measured.allocator_ooms, period)


def is_rejection(failure: Failure) -> bool:
    """Whether a final failure of this kind in the resume check rejects the winner; otherwise the check decides nothing,
    and the winner counts as unchecked."""
    return failure.kind in _UNFIT


def next_step(
    result: StudyResult, spec: StudySpec, runs: Sequence[ResumeRun], has_worker: bool
) -> ResumeCheck | CheckDue | None:
    """Next step of a study after its verdict: request the winner's resume check, apply the check's result, or None.

    `has_worker`: whether some connected worker can run the resume check.
    """
    number = result.best.trial_number
    if not spec.budget.resume_check:
        return None
    # A user's script decides what a checkpoint holds; only the product's own training loop is known to restore
    # everything.
    if spec.model.script is not None:
        return unchecked(number, "a script of your own saves and loads its checkpoints itself")
    # A cancelled run says nothing, so the check is due again.
    run = next((run for run in runs if run.trial == number and run.state is not TrialState.CANCELLED), None)
    if run is not None and run.state is not TrialState.WAITING:
        return _as_resume_check(run, result.best.config.backend, spec.checkpoint_every_s)
    return CheckDue() if has_worker else unchecked(number, "no live worker is of a release that knows this check")


def notes(runs: Sequence[ResumeRun]) -> tuple[str, ...]:
    """Notes for the user about trials that were to be recommended and failed the resume check."""
    return tuple(
        f"trial {run.trial} was to be recommended and failed its resume check: {run.failure.message}"
        for run in runs
        if run.failure is not None and is_rejection(run.failure)
    )


def notes_of_projected(spec: StudySpec, runs: Sequence[ResumeRun], projected: int, recommended: int) -> tuple[str, ...]:
    """Note that the resume check covers only the recommended trial, where another trial is projected to be the fastest
    on the target."""
    passed = {run.trial for run in runs if run.measurement is not None and run.failure is None}
    if projected == recommended or projected in passed or not spec.budget.resume_check:
        return ()
    return (
        f"trial {projected} was never checked to resume from its checkpoint, as only the trial that is recommended here "
        "is: save and resume a short training before a long one",
    )


def _as_resume_check(run: ResumeRun, backend: str, every_s: float) -> ResumeCheck:
    if run.failure is not None:
        outcome = ResumeOutcome.FAILED if is_rejection(run.failure) else ResumeOutcome.NOT_CHECKED
        reason = f"{run.failure.kind.value}: {run.failure.message}"
        check = ResumeCheck(trial_number=run.trial, outcome=outcome, reason=reason)
    else:
        check = ResumeCheck(trial_number=run.trial, outcome=ResumeOutcome.PASSED)
    return check if run.measurement is None else _with_figures(check, run.measurement, backend, every_s)


def _with_figures(check: ResumeCheck, measured: ResumeMeasurement, backend: str, every_s: float) -> ResumeCheck:
    pairs = zip(measured.uninterrupted, measured.resumed, strict=True)
    return check.model_copy(
        update={
            "steps_before": measured.saved_at_step,
            "steps_after": len(measured.resumed),
            "loss_difference": max(
                parity.relative_difference(continued.loss, resumed.loss) for continued, resumed in pairs
            ),
            "save_s": measured.save_s,
            "load_s": measured.load_s,
            "checkpoint_bytes": measured.checkpoint_bytes,
            "checkpoint_files": measured.checkpoint_files,
            "writing_ranks": measured.writing_ranks,
            "disk": measured.disk,
            "saving_fraction": checkpoint_cost.saving_fraction(measured, every_s),
            "checkpoint_findings": checkpoint_cost.findings(measured, backend, every_s),
            "allocator_retries": measured.allocator_retries,
            "elapsed_s": measured.elapsed_s,
        }
    )


def unchecked(number: int, reason: str) -> ResumeCheck:
    """Resume check of a trial that was not made, with the reason."""
    return ResumeCheck(trial_number=number, outcome=ResumeOutcome.NOT_CHECKED, reason=reason)
