"""Simulated worker: makes the runs of one study in virtual time.

How long a run warms up and is timed, and when it is pruned, is decided by the ranks' own rules
(`workers.rank.measure.throughput`), step by step.
"""

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.study_cost.overheads import Overheads
from benchmarks.study_cost.truth import Answer, Truth
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.measurements import Measurement, Memory, StepRecord
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement, ResumePlan
from shardtune.api_schemas.trials.short_steps import ShortSteps, ShortStepTimes, extended_s
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
        self._compiled: set[str] = set()

    def run(self, config: TrialConfig, plan: MeasurePlan) -> Ended:
        """Run a trial by its measurement plan."""
        answer = self._truth.of(config)
        seconds = self._start(config)
        clock = _StepClock(self._random, self._noise, answer, config, self._workload, self._cluster, plan)
        if answer.peak_gib > self._cluster.memory_gib:
            message = "out of memory in the first step"
            # On average half of a step has run when the device's memory is used up.
            seconds["first steps"] += clock.recorded_s / 2
            return Ended(None, Failure(kind=FailureKind.OOM, message=message), seconds)
        seconds["first steps"] += plan.parity_steps * clock.recorded_s * self._overheads.first_steps_factor
        timed = _timed_steps(clock, plan)
        seconds["warm-up steps"] += sum(time.spent_s for time in timed.warmup)
        seconds["timed steps"] += sum(time.spent_s for time in timed.windows) * timed.window_steps
        measurement = self._measurement(answer.peak_gib, timed, clock, plan, seconds)
        return Ended(measurement.model_copy(update={"is_pruned": not timed.windows}), None, seconds)

    def resume_check(
        self, config: TrialConfig, plan: ResumePlan, parameters: int, short: ShortSteps | None
    ) -> tuple[ResumeMeasurement, Seconds]:
        """Train, save, resume in new processes, and train on."""
        answer = self._truth.of(config)
        step_s = answer.step_s
        if short is not None:
            whole = config.accumulation(self._workload.global_batch, self._cluster.world_size)
            step_s = answer.short_s(short.parity_accumulation, whole)
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
                "compilation": self._compile_s(config),
                "end of the run": costs.end_s,
            },
        )

    def _compile_s(self, config: TrialConfig) -> float:
        """Seconds of compilation, of which an earlier run with the same graph leaves little."""
        if not config.compiles:
            return 0.0
        # Blocks are compiled before they are sharded, so their graph is that of shapes and recomputation. The backend
        # counts too, to err on the side of more.
        graph = config.model_copy(update={"strategy": None}).model_dump_json() + config.backend + str(config.sharing)
        if graph in self._compiled:
            return self._overheads.cached_compile_s
        self._compiled.add(graph)
        return self._overheads.compile_s

    def _measurement(
        self, peak_gib: float, timed: "_TimedSteps", clock: "_StepClock", plan: MeasurePlan, seconds: Seconds
    ) -> Measurement:
        warmup, windows, count = timed.warmup, timed.windows, timed.window_steps
        times = [time.step_s for time in windows or warmup]
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
            gradient_accumulation=clock.whole,
            short_steps=_short_step_times(plan, windows or warmup),
            elapsed_s=wall_s,
            startup_s=wall_s - sum(seconds[name] for name in ("first steps", "warm-up steps", "timed steps")),
            is_steady=True,
        )


@dataclass(frozen=True)
class _StepTime:
    """Time of one step, or of a pair of short steps."""

    step_s: float
    spent_s: float
    pair_s: tuple[float, float] | None = None


@dataclass(frozen=True)
class _TimedSteps:
    """Steps of a run after its recorded ones; no windows where the run was pruned."""

    warmup: list[_StepTime]
    windows: list[_StepTime]
    window_steps: int


class _StepClock:
    """Clock of one run, whose steps vary around a time that the run keeps."""

    def __init__(
        self,
        draws: random.Random,
        noise: float,
        answer: Answer,
        config: TrialConfig,
        workload: Workload,
        cluster: Cluster,
        plan: MeasurePlan,
    ) -> None:
        self._random, self._noise, self._answer, self._short = draws, noise, answer, plan.short_steps
        self.whole = config.accumulation(workload.global_batch, cluster.world_size)
        self._run = math.exp(draws.gauss(0, noise))

    @property
    def recorded_s(self) -> float:
        """Seconds of a fully recorded first step."""
        count = self.whole if self._short is None else self._short.parity_accumulation
        return self._run * (self._answer.step_s if count == self.whole else self._answer.short_s(count, self.whole))

    def step(self) -> _StepTime:
        """Time of the next step. A short step varies by as large a fraction as a whole one."""
        counts = None if self._short is None else self._short.accumulations
        if counts is None:
            step_s = self._varied(self._answer.step_s)
            return _StepTime(step_s, step_s)
        fewer_s, more_s = (self._varied(self._answer.short_s(count, self.whole)) for count in counts)
        return _StepTime(extended_s(fewer_s, more_s, counts, self.whole), fewer_s + more_s, (fewer_s, more_s))

    def _varied(self, seconds: float) -> float:
        return self._run * seconds * math.exp(self._random.gauss(0, self._noise))


def _timed_steps(clock: _StepClock, plan: MeasurePlan) -> _TimedSteps:
    """Warm up and time windows as a rank's loop does."""
    warmup, windows = list[_StepTime](), list[_StepTime]()
    while len(warmup) < plan.max_warmup_steps and not throughput.is_steady([time.spent_s for time in warmup]):
        warmup.append(clock.step())
        if throughput.is_hopeless([time.step_s for time in warmup], plan):
            return _TimedSteps(warmup, windows, 1)
    spent = [time.spent_s for time in warmup]
    count = 1 if plan.is_extended else throughput.steps_per_window(spent, plan)
    kept = len(warmup) - throughput.reused_steps(spent, count, plan)
    warmup, windows = warmup[:kept], warmup[kept:]
    while not _is_enough(windows, count, plan):
        steps = [clock.step() for _ in range(count)]
        step_s, spent_s = (
            statistics.fmean(values) for values in zip(*((s.step_s, s.spent_s) for s in steps), strict=True)
        )
        windows.append(_StepTime(step_s, spent_s, steps[0].pair_s))
    return _TimedSteps(warmup, windows, count)


def _is_enough(windows: list[_StepTime], count: int, plan: MeasurePlan) -> bool:
    spent_s = sum(time.spent_s for time in windows) if plan.is_extended else None
    return throughput.is_enough([time.step_s for time in windows], count, plan, spent_s)


def _short_step_times(plan: MeasurePlan, times: list[_StepTime]) -> ShortStepTimes | None:
    if plan.short_steps is None:
        return None
    pairs = [time.pair_s for time in times if time.pair_s is not None]
    return ShortStepTimes(
        parity_samples=plan.short_steps.parity_samples,
        parity_accumulation=plan.short_steps.parity_accumulation,
        accumulations=plan.short_steps.accumulations,
        fewer_s=tuple(fewer for fewer, _ in pairs),
        more_s=tuple(more for _, more in pairs),
    )
