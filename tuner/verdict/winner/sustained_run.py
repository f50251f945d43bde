"""Sustained run: one long run of a study's winner after the verdict, whether it is due, how long it is timed, and what its
speed says beside that of the comparison.

The runs of a comparison last seconds. A GPU's clocks may fall later, as it gets warm, so that a training may be slower
than its trials. The sustained run shows by how much; it never changes the verdict.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median, stdev
from typing import NamedTuple

from shardtune.api_schemas.machines.conditions import DeviceSeen
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.verdicts import SustainedOutcome, SustainedSpeed
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.measurements import MOST_TIMES, Measurement
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict import budget_left, short_steps
from shardtune.tuner.verdict.budget_left import StudySpent
from shardtune.tuner.verdict.whole_steps import MOST_OFF

_WINDOW_S = 5.0
"""Seconds that a timed window (a group of steps timed together) of a sustained run should last. It has at most
`_MOST_WINDOW_STEPS` steps, whose batches are all made before it begins."""
_MOST_WINDOW_STEPS = 100
_FEWEST_WINDOWS = 2
_NEVER_PRECISE = 1e-9
"""Target precision that no run reaches, so that a sustained run is timed for all of its seconds."""
# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom; the last one serves for more.
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True)
class SustainedRun:
    """Sustained run of a trial: one long run after the verdict."""

    trial: int
    state: TrialState
    measurement: Measurement | None = None
    failure: Failure | None = None
    worker: str = ""
    """Id of the worker that executed the run; empty while it waits."""


@dataclass(frozen=True)
class SustainedRunDue:
    """Request to make the sustained run of the study's winner now."""


class SustainedObstacle(StrEnum):
    """Circumstance outside of a study's settings that prevents its sustained run or another optional run. The answer is
    known, so the study completes without the run."""

    NO_WORKER = "no_worker"
    WORKER_ENDS = "worker_ends"
    """The worker that asks for work must end before the run would."""
    QUOTA_USED_UP = "quota_used_up"
    """The project has used up its GPU-seconds of the day."""
    CANCELLED = "cancelled"
    """The user cancelled the study when its answer was known."""


OBSTACLE_TEXTS = {
    SustainedObstacle.NO_WORKER: "no live worker is left that knows this run",
    SustainedObstacle.WORKER_ENDS: "the worker's allocation ends before it could finish",
    SustainedObstacle.QUOTA_USED_UP: "the project's GPU-seconds of the day (quota gpu_seconds_per_day) are used up",
    SustainedObstacle.CANCELLED: "the study was cancelled by its user",
}
"""Reason for each obstacle, as the answer states it of every optional run that was left out."""
OBSTACLE_REMEDIES = {
    SustainedObstacle.WORKER_ENDS: "start a worker that has more time",
    SustainedObstacle.QUOTA_USED_UP: "raise the quota, or run the study on another day",
}
"""Remedy for each obstacle that the user can remove."""
_FEWER_SECONDS = "give fewer seconds in budget.sustained_run_s"


class _LeftOut(NamedTuple):
    """Reason why a sustained run is left out, and the remedy if there is one."""

    reason: str
    remedy: str | None = None


def measure_plan(
    default_plan: MeasurePlan,
    seconds: float,
    step_s: float | None,
    samples: int | None,
    config: TrialConfig,
    workload: Workload,
    cluster: Cluster,
) -> MeasurePlan:
    """Measurement plan of a sustained run: whole steps, timed in windows of some seconds until `seconds` have passed.

    Args:
        step_s: measured seconds of a step; None where they are unknown.
        samples: number of different samples in the recorded first steps; None where the study has whole steps.
    """
    cycle = workload.steps_per_cycle
    wanted = _MOST_WINDOW_STEPS if not step_s else min(_MOST_WINDOW_STEPS, max(1, round(_WINDOW_S / step_s)))
    return default_plan.model_copy(
        update={
            "window_steps": max(1, wanted // cycle) * cycle,
            "min_windows": _FEWEST_WINDOWS,
            "max_windows": MOST_TIMES,
            "min_measure_s": 0.0,
            "max_measure_s": seconds,
            "target_half_width": _NEVER_PRECISE,
            "undecided_s": None,
            "prune_above_s": None,
            "short_steps": None
            if samples is None
            else short_steps.of_run(samples, config, workload, cluster, is_whole=True),
        }
    )


def next_step(
    result: StudyResult,
    best: Observation,
    spec: StudySpec,
    cluster: Cluster,
    runs: Sequence[SustainedRun],
    spent: StudySpent,
    *,
    obstacle: SustainedObstacle | None = None,
    compared_on: Collection[str] = (),
) -> SustainedSpeed | SustainedRunDue | None:
    """Next step of a study after its verdict: request the winner's sustained run, state its result, or None if the study
    makes no such run.

    Args:
        best: the trial that the result recommends, with its validation runs.
        obstacle: circumstance that prevents the sustained run now; None if there is none.
        compared_on: ids of the workers that executed the validation runs of `best`.
    """
    seconds = spec.budget.sustained_seconds(cluster.device)
    # Other programs would slow the sustained run as they did the others.
    if not seconds or result.verdict is Verdict.TOO_BUSY:
        return None
    # A cancelled run says nothing, so the run is due again.
    run = next((run for run in runs if run.trial == best.number and run.state is not TrialState.CANCELLED), None)
    if run is not None and run.state is not TrialState.WAITING:
        return _as_speed(run, result, best, compared_on)
    # The settings first: an obstacle that a later optional run of the study meets did not prevent this one.
    left_out = _why_left_out(best, spec, cluster, spent, seconds) or _why_prevented(obstacle)
    return SustainedRunDue() if left_out is None else _unmeasured(result, SustainedOutcome.LEFT_OUT, *left_out)


def _why_prevented(obstacle: SustainedObstacle | None) -> _LeftOut | None:
    """Reason why an obstacle prevents the sustained run; None without an obstacle."""
    if obstacle is None:
        return None
    remedy = OBSTACLE_REMEDIES.get(obstacle)
    if obstacle is SustainedObstacle.WORKER_ENDS:
        remedy = f"{remedy}, or {_FEWER_SECONDS}"
    return _LeftOut(OBSTACLE_TEXTS[obstacle], remedy)


def _why_left_out(
    best: Observation, spec: StudySpec, cluster: Cluster, spent: StudySpent, seconds: float
) -> _LeftOut | None:
    """Reason why a study makes no sustained run although it should have one; None if it makes it."""
    if spec.model.script is not None:
        return _LeftOut("a script of your own decides itself how long it trains")
    remedy = f"raise it, or {_FEWER_SECONDS}"
    # What a run takes beside its timed steps is known from the trial's first one.
    needed_s = seconds + (best.measurement.elapsed_s if best.measurement is not None else 0.0)
    short = budget_left.shortage(spec.budget, spent, needed_s, cluster.world_size)
    return None if short is None else _LeftOut(short.describe(), remedy)


def _unmeasured(
    result: StudyResult, outcome: SustainedOutcome, reason: str, remedy: str | None = None
) -> SustainedSpeed:
    return SustainedSpeed(
        trial_number=result.best.trial_number,
        outcome=outcome,
        reason=reason,
        remedy=remedy,
        compared_tokens_per_s_per_gpu=result.best.tokens_per_s_per_gpu,
    )


def _as_speed(
    run: SustainedRun, result: StudyResult, best: Observation, compared_on: Collection[str]
) -> SustainedSpeed:
    measured, failure = run.measurement, run.failure
    # A run over the memory limit has both.
    if measured is None or failure is not None:
        reason = "the run was lost" if failure is None else f"{failure.kind.value}: {failure.message}"
        return _unmeasured(result, SustainedOutcome.FAILED, reason)
    compared = best.validation_runs or ((best.measurement,) if best.measurement is not None else ())
    # The interval says what chance does on the machines of the comparison; another one may be slower by itself.
    is_elsewhere = bool(compared_on) and run.worker not in compared_on
    lowest = None if is_elsewhere else _lowest_speed(result.best.tokens_per_s_per_gpu, best.validation_runs)
    speed, is_disturbed = _late_speed(measured), measured.disturbed is not None
    devices = _devices(measured)
    powers = [device.power_w for device in devices if device.power_w is not None]
    return SustainedSpeed(
        trial_number=run.trial,
        outcome=SustainedOutcome.MEASURED,
        reason=measured.disturbed,
        compared_tokens_per_s_per_gpu=result.best.tokens_per_s_per_gpu,
        lowest_tokens_per_s_per_gpu=lowest,
        tokens_per_s_per_gpu=speed,
        duration_s=measured.measured_steps * fmean(measured.window_step_times_s),
        steps=measured.measured_steps,
        is_slower=lowest is not None and speed < lowest and not is_disturbed,
        is_disturbed=is_disturbed,
        sm_clock_mhz=_slowest_clock(measured),
        compared_sm_clock_mhz=_median([_slowest_clock(each) for each in compared]),
        temperature_c=_highest_temperature(measured),
        compared_temperature_c=_median([_highest_temperature(each) for each in compared]),
        power_w=fmean(powers) if powers else None,
        throttle_reasons=tuple(sorted({reason for device in devices for reason in device.throttle_reasons})),
    )


def _late_speed(measured: Measurement) -> float:
    """Mean speed over the second half of a run's timed windows, in tokens per second and GPU."""
    windows = measured.window_step_times_s
    late_s = fmean(windows[len(windows) // 2 :])
    return measured.tokens_per_s_per_gpu * measured.step_time_s / late_s


def _lowest_speed(compared: float, runs: Sequence[Measurement]) -> float | None:
    """Lower end of the 95 % prediction interval for the speed of one more run; None with fewer than two runs.

    compared: speed that the result states. It takes the place of the runs' mean if their step times were extrapolated
    from short steps (with fewer micro batches).
    """
    if len(runs) < 2:
        return None
    logs = [math.log(run.tokens_per_s_per_gpu) for run in runs]
    half_width = _T_95[min(len(logs) - 1, len(_T_95)) - 1] * stdev(logs) * math.sqrt(1 + 1 / len(logs))
    if any(run.is_extended for run in runs):
        return compared * math.exp(-max(half_width, MOST_OFF))
    return math.exp(fmean(logs) - half_width)


def _devices(run: Measurement) -> tuple[DeviceSeen, ...]:
    return run.conditions.devices if run.conditions is not None else ()


def _slowest_clock(run: Measurement) -> float | None:
    return min((device.sm_clock_mhz for device in _devices(run) if device.sm_clock_mhz is not None), default=None)


def _highest_temperature(run: Measurement) -> float | None:
    return max((device.temperature_c for device in _devices(run) if device.temperature_c is not None), default=None)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
