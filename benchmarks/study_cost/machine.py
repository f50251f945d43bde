"""Simulated worker: makes the runs of one study in virtual time.

How long a run warms up and is timed, and when it is pruned, is decided by the ranks' own rules
(`workers.rank.measure.throughput`), step by step.
"""

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.study_cost.overheads import Overheads
from benchmarks.study_cost.truth import Truth
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.measurements import Measurement, MeasurePlan, Memory, StepRecord
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement, ResumePlan
from shardtune.workers.rank.measure import throughput

Seconds = Mapping[str, float]
"""Wall-clock seconds of a run by what they were spent on."""
_TRAJECTORY = tuple(
    StepRecord(step=step, loss=11.0 - 0.1 * step, grad_norm=1.0, parameter_sum=3.0, parameter_square_sum=90.0)
    for step in range(200)
)
"""Recorded first steps: every configuration trains the same, as parity requires."""
_BYTES_PER_PARAMETER = 16


@dataclass(frozen=True)
class Ended:
    """One run that ended."""

    measurement: Measurement | None
    failure: Failure | None
    seconds: Seconds

    @property
    def wall_s(self) -> float:
        """Seconds of the whole run."""
        return sum(self.seconds.values())


class Machine:
    """Worker with one cluster that runs one configuration at a time."""

    def __init__(
        self, truth: Truth, workload: Workload, cluster: Cluster, overheads: Overheads, noise: float, seed: str
    ) -> None:
        """`noise`: standard deviation of log step time between runs, and between the steps of one run."""
        self._truth, self._workload, self._cluster = truth, workload, cluster
        self._overheads, self._noise = overheads, noise
        self._random = random.Random(f"machine {seed}")

    def run(self, config: TrialConfig, plan: MeasurePlan) -> Ended:
        """Run a trial by its measurement plan."""
        answer = self._truth.of(config)
        seconds = self._start(config)
        if answer.peak_gib > self._cluster.memory_gib:
            message = "out of memory in the first step"
            # On average half of a step has run when the device's memory is used up.
            seconds["first steps"] += answer.step_s / 2
            return Ended(None, Failure(kind=FailureKind.OOM, message=message), seconds)
        usual_s = answer.step_s * math.exp(self._random.gauss(0, self._noise))

        def step_s() -> float:
            return usual_s * math.exp(self._random.gauss(0, self._noise))

        seconds["first steps"] += plan.parity_steps * usual_s * self._overheads.first_steps_factor
        warmup, windows, count = _timed_steps(step_s, plan)
        seconds["warm-up steps"] += sum(warmup)
        seconds["timed steps"] += sum(windows) * count
        is_pruned = not windows
        measurement = self._measurement(answer.peak_gib, warmup, windows, count, plan, seconds)
        return Ended(measurement.model_copy(update={"is_pruned": is_pruned}), None, seconds)

    def resume_check(self, config: TrialConfig, plan: ResumePlan, parameters: int) -> tuple[ResumeMeasurement, Seconds]:
        """Train, save, resume in new processes, and train on."""
        step_s = self._truth.of(config).step_s
        before = min(plan.most_steps, max(plan.fewest_steps, math.ceil(plan.max_train_s / step_s)))
        size = _BYTES_PER_PARAMETER * parameters
        io_s = size / self._overheads.checkpoint_bytes_per_s
        first, second = self._start(config), self._start(config)
        seconds = {name: first[name] + second[name] for name in first}
        seconds["resume check's steps"] = (before + 2 * plan.steps_after) * step_s
        seconds["checkpoint"] = 2 * io_s
        after = _TRAJECTORY[before : before + plan.steps_after]
        measured = ResumeMeasurement(
            saved_at_step=before,
            losses=tuple(record.loss for record in _TRAJECTORY[: before + plan.steps_after]),
            uninterrupted=after,
            resumed=after,
            save_s=io_s,
            load_s=io_s,
            checkpoint_bytes=size,
            elapsed_s=sum(seconds.values()),
        )
        return measured, seconds

    def _start(self, config: TrialConfig) -> defaultdict[str, float]:
        costs = self._overheads
        return defaultdict(
            float,
            {
                "process start": costs.process_s,
                "process group": costs.group_s,
                "model build": costs.build_s,
                "compilation": costs.compile_s if config.compiles else 0.0,
                "end of the run": costs.end_s,
            },
        )

    def _measurement(
        self,
        peak_gib: float,
        warmup: list[float],
        windows: list[float],
        count: int,
        plan: MeasurePlan,
        seconds: Seconds,
    ) -> Measurement:
        times = windows or warmup
        step_s, half_width = statistics.median(times), throughput.relative_half_width(times)
        wall_s = sum(seconds.values())
        peak_gib *= math.exp(self._random.gauss(0, 0.002))
        on_gpu = self._cluster.device == "cuda"
        return Measurement(
            tokens_per_s_per_gpu=self._workload.tokens_per_step / self._cluster.world_size / step_s,
            step_time_s=step_s,
            step_time_half_width_s=half_width * statistics.fmean(times),
            memory=Memory(peak_allocated_gib=peak_gib, device_used_gib=peak_gib if on_gpu else None),
            wrap_time_s=self._overheads.build_s,
            warmup_steps=len(warmup) if windows else 0,
            measured_steps=len(times) * count,
            window_step_times_s=tuple(times),
            trajectory=_TRAJECTORY[: plan.parity_steps],
            losses=tuple(record.loss for record in _TRAJECTORY[: plan.parity_steps]),
            gradient_accumulation=1,
            elapsed_s=wall_s,
            startup_s=wall_s - sum(seconds[name] for name in ("first steps", "warm-up steps", "timed steps")),
            is_steady=True,
        )


def _timed_steps(step_s: Callable[[], float], plan: MeasurePlan) -> tuple[list[float], list[float], int]:
    """Seconds of the warm-up's steps and of the timed windows' steps, and steps in a window; without windows where the
    run is pruned."""
    warmup, windows = list[float](), list[float]()
    while len(warmup) < plan.max_warmup_steps and not throughput.is_steady(warmup):
        warmup.append(step_s())
        if throughput.is_hopeless(warmup, plan):
            return warmup, windows, 1
    count = throughput.steps_per_window(warmup, plan)
    kept = len(warmup) - throughput.reused_steps(warmup, count, plan)
    warmup, windows = warmup[:kept], warmup[kept:]
    while not throughput.is_enough(windows, count, plan):
        windows.append(statistics.fmean(step_s() for _ in range(count)))
    return warmup, windows, count
