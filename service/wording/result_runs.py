"""Stored runs on which a study's result rests. What the product says of runs is read from them, never guessed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import Run, RunPurpose, Trial, TrialState


@dataclass(frozen=True)
class ResultRuns:
    """Runs that a study's result rests on: its complete trials, and the validation runs of the final comparison."""

    complete: tuple[TrialConfig, ...] = ()
    """Configurations of the trials that were measured in full; pruned and infeasible trials are left out."""
    validation_runs: Mapping[int, tuple[Measurement, ...]] = field(default_factory=dict)
    """Measurements of the complete validation runs, by trial number."""
    best_search_run: Measurement | None = None
    """Measurement of the search run of the recommended trial."""
    block_speeds: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """Speeds in tokens per second and GPU, by the number of the comparison block (group of runs made right after each
    other) and by trial number."""

    def runs_of(self, number: int) -> tuple[Measurement, ...]:
        """Return the validation runs of a trial."""
        return self.validation_runs.get(number, ())

    def repeated_besides(self, *numbers: int) -> tuple[int, ...]:
        """Return the numbers of the trials that have a validation run, without the numbers that the arguments
        exclude."""
        return tuple(sorted(number for number, runs in self.validation_runs.items() if runs and number not in numbers))

    def overlapping(self, number: int, others: Iterable[int]) -> tuple[int, ...]:
        """Return those of the `others` (numbers of trials) whose validation runs overlap in speed with those of a
        trial, so that the runs do not show which of the two is faster."""
        own = self._speeds(number)
        ranges = {other: self._speeds(other) for other in others}
        return tuple(
            other
            for other, speeds in ranges.items()
            if own and speeds and min(speeds) <= max(own) and min(own) <= max(speeds)
        )

    def _speeds(self, number: int) -> list[float]:
        return [run.tokens_per_s_per_gpu for run in self.runs_of(number)]


def result_runs(
    study: Study, result: StudyResult, trials: Sequence[Trial], complete: Iterable[TrialConfig] | None = None
) -> ResultRuns:
    """Return the runs that a study's result rests on, taken from `trials`.

    `complete`: configurations that were measured in full; give them if `trials` does not hold all trials of the study.
    """
    # A study that was extended may run another comparison while its previous answer stands.
    number = result.final_comparison.number if result.final_comparison is not None else None
    if complete is None:
        complete = (trial.config for trial in trials if trial.state is TrialState.COMPLETE)
    best = next((trial for trial in trials if trial.number == result.best.trial_number), None)
    return ResultRuns(
        tuple(complete),
        {trial.number: _measured(trial, RunPurpose.VALIDATION, (number, None)) for trial in trials},
        next(iter(_measured(best, RunPurpose.SEARCH, (None,))), None) if best is not None else None,
        _block_speeds(trials, number),
    )


def _block_speeds(trials: Sequence[Trial], comparison: int | None) -> dict[int, dict[int, float]]:
    """Return the speeds of the validation runs of a final comparison, by number of the comparison block and by trial
    number."""
    speeds: dict[int, dict[int, float]] = {}
    for trial in trials:
        for run in trial.runs:
            measurement = _compared(run, RunPurpose.VALIDATION, (comparison, None))
            if measurement is not None and run.comparison_block is not None:
                speeds.setdefault(run.comparison_block, {})[trial.number] = measurement.tokens_per_s_per_gpu
    return speeds


def _measured(trial: Trial, purpose: RunPurpose, comparisons: tuple[int | None, ...]) -> tuple[Measurement, ...]:
    return tuple(filter(None, (_compared(run, purpose, comparisons) for run in trial.runs)))


def _compared(run: Run, purpose: RunPurpose, comparisons: tuple[int | None, ...]) -> Measurement | None:
    """Return the measurement of a run if the run is complete and has the given purpose and final comparison, else
    None."""
    is_complete = run.purpose == purpose and run.state is TrialState.COMPLETE and run.final_comparison in comparisons
    # Extended and whole steps are no repeats of each other.
    return run.measurement if is_complete and not run.is_whole_step else None
