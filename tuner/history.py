"""Observations: the trials of a study as the search uses them, one per trial, read from the database by the service."""

from dataclasses import dataclass

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import TrialOrigin, TrialState


@dataclass(frozen=True)
class Observation:
    """Trial of a study as the search uses it, with its search run and its validation runs in the current final
    comparison."""

    number: int
    config: TrialConfig
    origin: TrialOrigin
    state: TrialState
    measurement: Measurement | None = None
    """Measurement of the trial's search run; kept for a trial that is later found infeasible."""
    failure: Failure | None = None
    validation_runs: tuple[Measurement, ...] = ()
    """Measurements of the trial's complete validation runs, in the order in which they ran."""
    whole_step_run: Measurement | None = None
    """Measurement of the validation run that timed whole steps; the other runs' step times were extrapolated from short
    steps (with fewer micro batches)."""

    @property
    def is_measured(self) -> bool:
        """Whether the trial ran as planned and its speed is known, if only roughly because it was pruned (stopped
        early)."""
        return self.measurement is not None and self.state.is_feasible

    @property
    def is_disturbed(self) -> bool:
        """Whether the trial's search run counts although other programs disturbed its machine; undisturbed, the trial
        may be faster."""
        return self.measurement is not None and self.measurement.disturbed is not None

    @property
    def is_excluded(self) -> bool:
        """Whether the trial must not be tried again: it is infeasible, or it crashed twice."""
        # Only a crash is the configuration's fault: a lost worker or a full disk says nothing about it.
        crashed = self.failure is not None and self.failure.kind is FailureKind.CRASH
        return self.state is TrialState.INFEASIBLE or (self.state is TrialState.FAILED and crashed)

    @property
    def config_key(self) -> str:
        """Content key (hash) of the trial's configuration, by which repeats are recognised."""
        return self.config.content_key()
