"""Schema of a run's plan: length of warm-up and measurement."""

from typing import Annotated

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.protocol import Since
from shardtune.api_schemas.trials.short_steps import SHORT_STEPS_SINCE, ShortSteps

LOSS_STEPS_SINCE = 2
"""First protocol version whose workers keep the losses of many first steps."""
MOST_LOSS_STEPS = 2000
"""Maximum number of first steps whose losses a run keeps."""
StepTimeRange = tuple[float, float]
"""Range of step times: the shortest and the longest, in seconds."""


class MeasurePlan(Schema):
    """Plan of a run: length of warm-up and measurement."""

    parity_steps: int = Field(default=3, ge=2, le=100)
    """Number of first steps whose loss, gradient norm and parameter checksum are recorded; two of them are profiled for
    memory."""
    max_warmup_steps: int = Field(default=8, ge=1)
    """Maximum number of warm-up steps; warm-up ends earlier once the step time is steady."""
    window_steps: int = Field(default=3, ge=1)
    """Number of steps timed together as one window, within which losses stay on the device. A window has fewer steps if
    they are slow (`max_measure_s`), and more if they are short (`min_measure_s`)."""
    min_windows: int = Field(default=3, ge=2)
    max_windows: int = Field(default=8, ge=2)
    target_half_width: float = Field(default=0.02, gt=0)
    """Relative half-width of the step time's 95 % interval over the timed windows; timing stops once it is below this
    value."""
    max_measure_s: float = Field(default=12.0, gt=0)
    """Seconds of timed windows after which no new window begins; `min_windows` always run, with a single step each if
    necessary."""
    min_measure_s: float = Field(default=1.0, ge=0)
    """Minimum total seconds of the first `min_windows` windows, so that steps of milliseconds are timed by the
    hundred."""
    undecided_s: StepTimeRange | None = None
    """Range of step times in seconds that needs a precise measurement. Timing also stops once the 95 % interval over
    windows lies outside the range. None: no range."""
    prune_above_s: float | None = Field(default=None, gt=0)
    """Step time in seconds above which a run is pruned: it ends during warm-up once each of its steps (at least three)
    has taken longer, and the lower end of the 95 % interval of their mean is also longer. None: never pruned."""
    loss_steps: Annotated[int, Since(LOSS_STEPS_SINCE)] = Field(default=0, ge=0, le=MOST_LOSS_STEPS)
    """Number of first steps whose losses are kept; they run untimed before the warm-up, and include the `parity_steps`
    fully recorded steps. With a value up to `parity_steps`, only the losses of the fully recorded steps are kept."""
    short_steps: Annotated[ShortSteps | None, Since(SHORT_STEPS_SINCE)] = None
    """Numbers of micro batches per step in a run whose steps have fewer than the workload's; None: the run trains whole
    steps."""

    @property
    def is_extended(self) -> bool:
        """Whether the run times steps with fewer micro batches and extends their times to the whole step."""
        return self.short_steps is not None and self.short_steps.accumulations is not None

    def whole_steps(self, timed: int, whole: int) -> float:
        """Return the number of the run's recorded and `timed` steps, converted to whole steps of `whole` micro
        batches."""
        short = self.short_steps
        if short is None:
            return max(self.parity_steps, self.loss_steps) + timed
        recorded = self.parity_steps * short.parity_accumulation
        return (recorded + timed * sum(short.accumulations or (whole,))) / whole

    def is_precise_enough(self, step_time_s: float, half_width_s: float) -> bool:
        """Whether a step time with this half-width is measured precisely enough under the plan."""
        if half_width_s <= self.target_half_width * step_time_s:
            return True
        if self.undecided_s is None:
            return False
        shortest, longest = self.undecided_s
        return step_time_s + half_width_s < shortest or step_time_s - half_width_s > longest
