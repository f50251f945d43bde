"""Words about runs that were kept although they were disturbed: which attempt it was, and why it is not repeated."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.trial import Attempt, AttemptEnd, Run, RunPurpose, Trial, TrialState
from shardtune.service.wording import study_words
from shardtune.tuner.verdict import disturbance


@dataclass(frozen=True)
class KeptRun:
    """Run that was disturbed, ended with a measurement and is not repeated."""

    trial_number: int
    run: Run
    why: str
    """Reason why the run is not repeated."""
    is_lasting: bool
    """Whether the reason also holds for the runs that follow, until one of them is undisturbed."""
    is_load_steady: bool = False
    """Whether nothing is repeated because too many runs in a row were disturbed."""

    @property
    def mark(self) -> str:
        """Mark at the end of the run's line: ` (disturbed)`, with the limit if one forbade another repeat."""
        return " (disturbed)" if self.is_lasting else f" (disturbed; {_attempt_name(self.run)} is kept, as {self.why})"

    @property
    def line(self) -> str:
        """Line that says which attempt is kept and why, for the first of several runs with a lasting reason."""
        # A run of a pair may still be left out, if the pair's other run had another load.
        kept = "counts" if self.run.purpose == RunPurpose.SEARCH else "kept"
        assert self.run.measurement is not None
        return (
            f"disturbed, but {kept}: {study_words.run_name(self.run.purpose)} of trial {self.trial_number}, "
            f"{_attempt_name(self.run)} ({self.run.measurement.disturbed}); {self.why}, and further lines say only (disturbed)"
        )


def kept_run(study: Study, trials: Sequence[Trial], trial: Trial, run: Run) -> KeptRun | None:
    """Return why a measured run is not repeated although it was disturbed; None for a run that was not disturbed."""
    if not run.state.is_feasible or run.measurement is None or run.measurement.disturbed is None:
        return None
    why = _limit(study, trials, run)
    if why is not None:
        return KeptRun(trial.number, run, why, is_lasting=False)
    if study.spec.budget.repeat_disturbed == 0:
        return KeptRun(trial.number, run, "budget.repeat_disturbed is 0, so nothing is repeated", is_lasting=True)
    # Of the reasons of `disturbance.may_repeat`, only a load that stays is left.
    why = f"after {disturbance.MAX_DISCARDED_IN_A_ROW} in a row nothing is repeated until a run is undisturbed"
    return KeptRun(trial.number, run, why, is_lasting=True, is_load_steady=True)


def kept_mark(study: Study, trials: Sequence[Trial], trial: Trial, run: Run) -> str:
    """Return the mark of a run that was disturbed and is not repeated; empty for another run."""
    kept = kept_run(study, trials, trial, run)
    return "" if kept is None else kept.mark


def ended_runs(trials: Sequence[Trial]) -> list[tuple[Trial, Run]]:
    """Return the measured runs of a study with their trials, in the order in which they ended."""
    runs = [(trial, run) for trial in trials for run in trial.runs if run.state.is_feasible]
    return sorted(
        ((trial, run) for trial, run in runs if run.measurement is not None), key=lambda ended: _end_s(ended[1])
    )


def disturbed_attempts(trials: Sequence[Trial]) -> Iterator[tuple[Trial, Run, Attempt]]:
    """Yield each attempt of a run that is repeated because it was disturbed, together with its trial and run."""
    for trial in trials:
        for run in trial.runs:
            for attempt in run.attempts:
                if attempt.end is AttemptEnd.DISTURBED:
                    yield trial, run, attempt


def _limit(study: Study, trials: Sequence[Trial], run: Run) -> str | None:
    """Return the limit that forbids to repeat a disturbed run, in words; None if no limit does."""
    fraction = study.spec.budget.repeat_disturbed
    if fraction == 0 or _repeats_here(run) >= disturbance.MAX_DISCARDED_IN_A_ROW:
        return None
    if run.purpose == RunPurpose.SUSTAINED:
        return "a sustained run is never repeated"
    if sum(attempt.end is AttemptEnd.DISTURBED for attempt in run.attempts) >= disturbance.MAX_REPEATS:
        return f"a run is repeated at most {disturbance.MAX_REPEATS} times"
    # As the service counted them when the run ended: both numbers grow later.
    end_s, runs = _end_s(run), [other for trial in trials for other in trial.runs]
    disturbed = [attempt for other in runs for attempt in other.attempts if attempt.end is AttemptEnd.DISTURBED]
    repeats = sum(_finished_s(attempt) <= end_s for attempt in disturbed)
    complete = sum(other.state is TrialState.COMPLETE and _end_s(other) < end_s for other in runs)
    if repeats < disturbance.FREE_REPEATS + fraction * complete:
        return None
    return f"all {repeats} repeats that the budget allows so far are used"


def _repeats_here(run: Run) -> int:
    """Return the number of a run's disturbed attempts on the worker of its last attempt."""
    here = [attempt for attempt in run.attempts if attempt.worker == run.attempts[-1].worker]
    return sum(attempt.end is AttemptEnd.DISTURBED for attempt in here)


def _end_s(run: Run) -> float:
    """Return the time at which a run ended, in seconds since 1970; 0 if it is not known."""
    return _finished_s(run.attempts[-1]) if run.attempts else 0.0


def _finished_s(attempt: Attempt) -> float:
    return attempt.finished_at.timestamp() if attempt.finished_at is not None else 0.0


def _attempt_name(run: Run) -> str:
    return f"attempt {run.attempts[-1].attempt if run.attempts else 1}"
