"""Does the study's answer go on from its own checkpoint? When that is asked, and what the run that asks it means."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardtune.api_schemas.failures import Failure, FailureKind
from shardtune.api_schemas.restart import RestartCheck, RestartMeasurement, RestartOutcome
from shardtune.api_schemas.studies import StudyResult, StudySpec
from shardtune.api_schemas.trials import TrialState
from shardtune.api_schemas.workload import Recipe
from shardtune.tuner import objective
from shardtune.tuner.verdict import checkpoint_cost, parity

_UNFIT = {
    FailureKind.OOM,
    FailureKind.OVER_LIMIT,
    FailureKind.ILLEGAL,
    FailureKind.NUMERICS,
    FailureKind.CRASH,
    FailureKind.RANK_LOST,
}
"""What counts against the configuration, the platform's share of it after a second try. Not a full disk or a lost worker."""


@dataclass(frozen=True)
class RestartRun:
    """A run that asked, of a trial."""

    trial: int
    state: TrialState
    measured: RestartMeasurement | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class CheckDue:
    """The winner is to be run for it."""


def fault(measured: RestartMeasurement, recipe: Recipe) -> Failure | None:
    """Why the new processes did not go on with the same training, or not within the memory; None where they did."""
    bounds = parity.tolerance(recipe)
    for ours, theirs in zip(measured.went_on, measured.resumed, strict=True):
        reason = parity.step_difference(ours, theirs, bounds, "the processes that saved")
        if reason is not None:
            message = f"loaded from its checkpoint in new processes it trains something else: {reason}"
            return Failure(kind=FailureKind.NUMERICS, message=message)
    when = f"over {len(measured.losses)} steps and a restart"
    return objective.retried(measured.allocator_retries, measured.allocator_ooms, when)


def refuses(failure: Failure) -> bool:
    """Whether a run that ended so for good takes the win away; else it stays unchecked."""
    return failure.kind in _UNFIT


def next_step(
    result: StudyResult, spec: StudySpec, runs: Sequence[RestartRun], has_worker: bool
) -> RestartCheck | CheckDue | None:
    """What to do about a verdict: have its best checked, nothing, or what the check came to.

    `has_worker`: some live worker understands the task.
    """
    number = result.best.trial_number
    if not spec.budget.restart_check:
        return None
    if spec.model.script is not None:
        return _unchecked(number, "a script of your own saves and loads its checkpoints itself")
    run = next((run for run in runs if run.trial == number and run.state is not TrialState.CANCELLED), None)
    if run is not None and run.state is not TrialState.WAITING:
        return _check(run, result.best.config.backend, spec.checkpoint_every_s)
    return CheckDue() if has_worker else _unchecked(number, "no live worker is of a release that knows this check")


def notes(runs: Sequence[RestartRun]) -> tuple[str, ...]:
    """Who won the pairs and was refused for it."""
    return tuple(
        f"trial {run.trial} won its pairs and was refused: {run.failure.message}"
        for run in runs
        if run.failure is not None and refuses(run.failure)
    )


def _check(run: RestartRun, backend: str, every_s: float) -> RestartCheck:
    if run.failure is not None:
        outcome = RestartOutcome.FAILED if refuses(run.failure) else RestartOutcome.NOT_CHECKED
        reason = f"{run.failure.kind.value}: {run.failure.message}"
        check = RestartCheck(trial_number=run.trial, outcome=outcome, reason=reason)
    else:
        check = RestartCheck(trial_number=run.trial, outcome=RestartOutcome.PASSED)
    return check if run.measured is None else _with_figures(check, run.measured, backend, every_s)


def _with_figures(check: RestartCheck, measured: RestartMeasurement, backend: str, every_s: float) -> RestartCheck:
    pairs = zip(measured.went_on, measured.resumed, strict=True)
    return check.model_copy(
        update={
            "steps_before": measured.saved_at_step,
            "steps_after": len(measured.resumed),
            "loss_difference": max(parity.relative(ours.loss, theirs.loss) for ours, theirs in pairs),
            "save_s": measured.save_s,
            "load_s": measured.load_s,
            "checkpoint_bytes": measured.checkpoint_bytes,
            "checkpoint_files": measured.checkpoint_files,
            "writing_ranks": measured.writing_ranks,
            "disk": measured.disk,
            "saving_share": checkpoint_cost.saving_share(measured, every_s),
            "checkpoint_findings": checkpoint_cost.findings(measured, backend, every_s),
            "allocator_retries": measured.allocator_retries,
            "elapsed_s": measured.elapsed_s,
        }
    )


def _unchecked(number: int, why: str) -> RestartCheck:
    return RestartCheck(trial_number=number, outcome=RestartOutcome.NOT_CHECKED, reason=why)
