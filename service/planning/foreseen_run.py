"""Seconds of one run of a configuration, by its measurement plan and predicted step time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.predictions import Prediction

_WHOLE_STEPS = 3
"""Number of steps in each of the two runs after the verdict that time whole steps: one warm-up step and two timed
steps.
"""

_SHORTEST_WARM_UP = 3
"""Number of warm-up steps after which equal step times are seen to be steady."""


class RunPlan(NamedTuple):
    """Plan for measuring the runs of one configuration: warm-up, number of timed steps, and precision."""

    measure: MeasurePlan
    micro_batches: int = 1
    """Number of micro batches that each rank computes in a whole step. Used only if the runs time short steps, which
    have fewer micro batches.
    """
    cycle_steps: int = 1
    """Number of consecutive steps that are timed together; above 1 if the samples have several lengths, so that each
    timing covers the whole mix of lengths.
    """


PlanOf = Callable[[TrialConfig], RunPlan]
"""Function that returns the plan for measuring a configuration: its warm-up, timed steps and micro batches."""


@dataclass(frozen=True)
class ForeseenRun:
    """Run that a study is expected to make of one configuration, to estimate its duration before it starts. The
    estimate needs the run's measurement plan and its predicted step time.
    """

    plan: MeasurePlan
    micro_batches: int
    cycle_steps: int
    step_s: float

    @classmethod
    def of(cls, prediction: Prediction, plan: PlanOf) -> "ForeseenRun":
        """Create the expected run of a configuration whose speed is predicted."""
        assert prediction.speed is not None
        return cls(*plan(prediction.config), prediction.speed.step_time_s)

    def seconds(self, *, shortest: bool) -> float:
        """Seconds of the run's steps."""
        plan, recorded_s = self.plan, self.step_s * self.plan.whole_steps(0, self.micro_batches)
        timed_s = self.step_s * plan.whole_steps(self.cycle_steps, self.micro_batches) - recorded_s
        window_steps = 1 if plan.is_extended or self.cycle_steps > 1 else plan.window_steps
        if shortest:
            # Steady steps of the warm-up count as the windows of short steps.
            warm_up_s = 0.0 if plan.is_extended else 2 * timed_s
            return recorded_s + warm_up_s + max(plan.min_measure_s, plan.min_windows * timed_s)
        most_s = min(plan.max_measure_s, plan.max_windows * window_steps * timed_s)
        return (
            recorded_s + plan.max_warmup_steps * timed_s + max(most_s, plan.min_windows * timed_s, plan.min_measure_s)
        )

    def first_steps_s(self, *, shortest: bool) -> float:
        """Seconds of the recorded first steps and of the warm-up in a run that times whole steps."""
        warm_up_steps = _SHORTEST_WARM_UP if shortest else self.plan.max_warmup_steps
        return self.step_s * (self.plan.whole_steps(0, self.micro_batches) + warm_up_steps * self.cycle_steps)

    def of_whole_steps(self) -> "ForeseenRun":
        """Return a copy of this expected run with whole steps in place of short steps (which have fewer micro
        batches).
        """
        return replace(self, plan=self.plan.model_copy(update={"short_steps": None}))

    def whole_steps_s(self, start_s: float) -> float:
        """Total seconds of the two runs after the verdict that time whole steps, with all their micro batches. 0 if
        all runs of the study time whole steps already.
        """
        return 2 * (start_s + _WHOLE_STEPS * self.step_s) if self.plan.is_extended else 0.0
