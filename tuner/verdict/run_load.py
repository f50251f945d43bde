"""Load of other programs during a run, how far its own windows lay apart, and whether two runs had the same load."""

from dataclasses import dataclass

from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.tuner.verdict.disturbance import MAX_FOREIGN_FRACTION, throttling


@dataclass(frozen=True)
class RunLoad:
    """Load of other programs during one run, and whether the run was throttled."""

    is_disturbed: bool = False
    cores_left: float | None = None
    """Number of CPU cores that other programs left for the ranks; None where the worker could not observe it."""

    spread: float | None = None
    """Half-width of the 95 % interval of the run's step time over the run's measurement windows (groups of steps timed
    together), as a fraction of the step time; None where the run does not state it."""

    is_throttled: bool = False
    """Whether heat, power brake or hardware lowered a GPU's clocks during the run."""

    @classmethod
    def of(cls, measurement: Measurement) -> "RunLoad":
        """Load of other programs during a measured run, as the service judged it from its measurement."""
        # No clock is exact to the last digit: a half-width of 0 was not measured.
        spread = measurement.step_time_half_width_s / measurement.step_time_s or None
        is_throttled = throttling(measurement) is not None
        return cls(measurement.disturbed is not None, measurement.cores_left, spread, is_throttled)


PairLoads = tuple[RunLoad, RunLoad]
"""Loads of other programs during the two runs of a pair."""
UNDISTURBED = RunLoad()
"""Load during a run that no other program disturbed."""


def is_even(first: RunLoad, second: RunLoad) -> bool:
    """Whether two runs had the same conditions: neither was disturbed, or other programs left about the same number of
    cores to both."""
    if not (first.is_disturbed or second.is_disturbed):
        return True
    if first.cores_left is None or second.cores_left is None:
        return False
    fewer, more = sorted((first.cores_left, second.cores_left))
    # Relative to the fewer cores left: where little is left, a small difference changes the speed most.
    return more - fewer <= MAX_FOREIGN_FRACTION * fewer
