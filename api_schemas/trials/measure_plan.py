"""Schema of a run's plan: length of warm-up and measurement."""

from typing import Annotated

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.protocol import Since
from shardtune.api_schemas.trials.short_steps import SHORT_STEPS_SINCE, ShortSteps

LOSS_STEPS_SINCE = 2
"""First protocol version whose workers can keep the losses of more first steps than those that are fully recorded."""
MOST_LOSS_STEPS = 2000
"""Maximum number of steps, counted from the first, whose losses a run keeps."""
StepTimeRange = tuple[float, float]
"""Range of step times in seconds: the shortest and the longest."""


class MeasurePlan(Schema):
    """Plan of a run: the number of its first steps whose losses are recorded, the length of its warm-up, and the length
    of its measurement."""

    parity_steps: int = Field(default=3, ge=2, le=100)
    """Number of steps, counted from the first, whose loss, gradient norm and parameter checksum are recorded. Memory is
    profiled in two of them."""
    max_warmup_steps: int = Field(default=8, ge=1)
    """Maximum number of warm-up steps; warm-up ends earlier once the step time is steady."""
    window_steps: int = Field(default=3, ge=1)
    """Number of steps that are timed together as one window; their losses stay on the device until the window ends. A
    window has fewer steps if they are slow (`max_measure_s`), and more if they are short (`min_measure_s`)."""
    min_windows: int = Field(default=3, ge=2)
    max_windows: int = Field(default=8, ge=2)
    target_half_width: float = Field(default=0.02, gt=0)
    """Precision at which timing stops: the half-width of the step time's 95 % interval, divided by the step time; 0.02
    means ± 2 %. The interval is calculated from the timed windows (groups of steps timed together)."""
    max_measure_s: float = Field(default=12.0, gt=0)
    """Seconds of timing after which no new window (group of steps timed together) begins. `min_windows` windows are
    timed in any case, with a single step each if necessary."""
    min_measure_s: float = Field(default=1.0, ge=0)
    """Minimum number of seconds for which the first `min_windows` windows (groups of steps timed together) last in
    total. If steps take only milliseconds, a window therefore has hundreds of them."""
    undecided_s: StepTimeRange | None = None
    """Range of step times, in seconds, within which a run must be measured precisely. Timing also stops once the 95 %
    interval of the run's step time lies outside the range. If None, there is no range."""
    prune_above_s: float | None = Field(default=None, gt=0)
    """Step time in seconds above which a run is pruned, which means that it ends during its warm-up. At least three
    warm-up steps must have run, all longer than this, and the lower end of the 95 % interval of their mean must be
    longer, too. If None, the run is never pruned."""
    loss_steps: Annotated[int, Since(LOSS_STEPS_SINCE)] = Field(default=0, ge=0, le=MOST_LOSS_STEPS)
    """Number of steps, counted from the first, whose losses are kept. They run before the warm-up and are not timed.
    The first `parity_steps` of them are recorded fully; if this number is not larger, only their losses are kept."""
    short_steps: Annotated[ShortSteps | None, Since(SHORT_STEPS_SINCE)] = None
    """Numbers of micro batches per step in a run whose steps have fewer of them than the workload's whole step. If
    None, the run trains whole steps."""

    @property
    def is_extended(self) -> bool:
        """Whether the run times steps with fewer micro batches than a whole step, and extrapolates the time of the
        whole step."""
        return self.short_steps is not None and self.short_steps.accumulations is not None

    def whole_steps(self, timed: int, whole: int) -> float:
        """Return how many whole steps (of `whole` micro batches) have as many micro batches as the run's recorded steps
        and its `timed` steps together."""
        short = self.short_steps
        if short is None:
            return max(self.parity_steps, self.loss_steps) + timed
        recorded = self.parity_steps * short.parity_accumulation
        return (recorded + timed * sum(short.accumulations or (whole,))) / whole

    def is_precise_enough(self, step_time_s: float, half_width_s: float) -> bool:
        """Whether a run's step time is known precisely enough for the plan, given the half-width of its 95 % interval."""
        if half_width_s <= self.target_half_width * step_time_s:
            return True
        if self.undecided_s is None:
            return False
        shortest, longest = self.undecided_s
        return step_time_s + half_width_s < shortest or step_time_s - half_width_s > longest
