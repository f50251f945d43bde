"""What the search knows: one observation per trial, as the service reads it from the database."""

from dataclasses import dataclass

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import TrialOrigin, TrialState


@dataclass(frozen=True)
class Observation:
    """One trial of a study, its search run and its validation runs in the present final comparison."""

    number: int
    config: TrialConfig
    origin: TrialOrigin
    state: TrialState
    measurement: Measurement | None = None
    """Of the search run; also kept for a trial that was later found infeasible."""
    failure: Failure | None = None
    validation_runs: tuple[Measurement, ...] = ()
    """Of the complete validation runs, in the order they were made."""

    @property
    def is_measured(self) -> bool:
        """It ran as it was to, and its speed is known, if only roughly (pruned)."""
        return self.measurement is not None and self.state.is_feasible

    @property
    def is_no_choice(self) -> bool:
        """Nothing to try again: infeasible, or a crash that was repeated once and came again."""
        crashed = self.failure is not None and self.failure.kind is FailureKind.CRASH
        return self.state is TrialState.INFEASIBLE or (self.state is TrialState.FAILED and crashed)

    @property
    def config_key(self) -> str:
        """Content key of the configuration."""
        return self.config.content_key()
