"""Learning: fits calibrations to the stored trials of one fingerprint (hardware and software versions), and makes the
prediction stored with each new trial."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.step_trace import StepTrace
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.measurements import Measurement, Memory
from shardtune.api_schemas.trials.predictions import TrialPrediction
from shardtune.tuner.prediction.calibration import (
    BAND_DEVIATIONS,
    CPU_SPREAD,
    GPU_SPREAD,
    HOST_FACTORS,
    NO_CALIBRATIONS,
    NO_TRIALS,
    PARTS,
    TRACED,
    UNCALIBRATED,
    Calibrations,
    MemoryCalibration,
    OwnCalibration,
    SpeedCalibration,
    fit_host_and_parts,
    fit_memory,
)
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import Evaluation, evaluate
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.shapes.calibration_choice import memory_calibration, speed_calibration

_MOST_OWN = 16
"""Maximum number of traced steps (of users' own code) that get calibrations of their own, newest first; each costs a
fit of speeds."""


@dataclass(frozen=True)
class MeasuredTrials:
    """Measured trials of one study on one fingerprint (hardware and software versions)."""

    shape: ModelShape
    workload: Workload
    cluster: Cluster
    configs: Sequence[TrialConfig]
    measurements: Sequence[Measurement]
    hardware: MeasuredHardware | None = None
    study: str = ""


@dataclass(frozen=True)
class ComparedRun:
    """Measurement of one run, with the prediction that it is compared with."""

    study: str
    config: TrialConfig
    on_cpu: bool
    peak_gib: tuple[float, float] | None
    """Peak memory in GiB as a pair (predicted, measured)."""
    parts_by_host: Mapping[float, Mapping[str, float]]
    """Predicted seconds of each part of a step, for each factor on the seconds of a kernel launch (`HOST_FACTORS`; on
    CPU ranks only 1); empty where the hardware's rates are unknown."""
    seconds: float
    """Measured seconds of a step; 0 where the run's speed was not measured."""
    trace: StepTrace | None = None
    """Traced step of the user's own code, from which the run was predicted."""

    @property
    def is_timed(self) -> bool:
        """Whether both a prediction and a measurement of the run's speed exist."""
        return bool(self.parts_by_host) and self.seconds > 0


def compare(group: MeasuredTrials) -> list[ComparedRun]:
    """Compare each of a study's measured runs with its prediction, in the order of the runs."""
    # One evaluation for all runs and factor: 5 ms for a study.
    results = {host: _on_host(group, host) for host in (HOST_FACTORS if group.cluster.device == "cuda" else (1.0,))}
    result = results[1.0]
    tokens = group.workload.tokens_per_step / group.cluster.world_size
    compared_runs = []
    for index, measurement in enumerate(group.measurements):
        used, speed = peak_gib(measurement.memory), measurement.tokens_per_s_per_gpu
        compared_runs.append(
            ComparedRun(
                study=group.study,
                config=group.configs[index],
                on_cpu=group.cluster.device == "cpu",
                peak_gib=(float(_predicted_peaks(result, measurement.memory)[index]) / GIB, used) if used else None,
                parts_by_host={
                    host: {name: float(np.ravel(result.step.parts[name])[index]) for name in PARTS}
                    for host, result in results.items()
                    if result.step is not None
                },
                seconds=tokens / speed if speed > 0 else 0.0,
                trace=group.shape.step_trace,
            )
        )
    return compared_runs


def _on_host(group: MeasuredTrials, factor: float) -> Evaluation:
    """Predict the trials for a host on which a kernel launch takes `factor` times as long."""
    calibrations = Calibrations(speed=replace(UNCALIBRATED, host=factor))
    return _evaluate_configs(group.shape, group.workload, group.cluster, group.configs, calibrations, group.hardware)


def learn(runs: Iterable[ComparedRun]) -> Calibrations:
    """Fit the predictor's calibrations to all runs measured on one fingerprint (hardware and software versions); `runs`
    begin with the newest."""
    runs = list(runs)
    by_trace: dict[StepTrace | None, list[ComparedRun]] = defaultdict(list)
    for run in runs:
        by_trace[run.trace].append(run)
    known = by_trace.pop(None, [])
    own_code = {
        trace: OwnCalibration(_learn_speed([*known, *own]), _learn_memory(own, TRACED) or TRACED)
        for trace, own in islice(by_trace.items(), _MOST_OWN)
        if trace is not None
    }
    return Calibrations(_learn_speed(known), _learn_memory(known, NO_TRIALS), own_code)


def _learn_memory(runs: Sequence[ComparedRun], prior: MemoryCalibration) -> MemoryCalibration | None:
    # With a budget of activations, the predicted peak is an upper bound: such runs would make the others' look too high.
    whole = [run for run in runs if run.config.activation_memory_budget == 1]
    peaks = [run.peak_gib for run in whole if run.peak_gib is not None]
    return fit_memory([predicted for predicted, _ in peaks], [used for _, used in peaks], prior) if peaks else None


def _learn_speed(runs: Sequence[ComparedRun]) -> SpeedCalibration:
    timed = [run for run in runs if run.is_timed]
    if not timed:
        return UNCALIBRATED
    # Runs of one fingerprint have the same device.
    factors = timed[0].parts_by_host
    # One CPU run widens the prior for all: the fingerprint's runs share the factors.
    spread = CPU_SPREAD if any(run.on_cpu for run in runs) else GPU_SPREAD
    return fit_host_and_parts(
        {host: [run.parts_by_host[host] for run in timed] for host in factors},
        [run.seconds for run in timed],
        spread,
    )


def peak_gib(memory: Memory) -> float | None:
    """Measured peak GiB with which a prediction is compared: the memory in use on the device, otherwise the allocated
    tensors; None where neither was measured."""
    return memory.device_used_gib or memory.peak_allocated_gib


def _predicted_peaks(result: Evaluation, memory: Memory) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Predicted peak bytes, of the kind that was measured: memory in use on the device, or allocated tensors."""
    table = result.memory
    figures = table.device if memory.device_used_gib else table.allocated
    return np.broadcast_to(figures, (result.candidates.size,))


def _evaluate_configs(
    shape: ModelShape,
    workload: Workload,
    cluster: Cluster,
    configs: Sequence[TrialConfig],
    calibrations: Calibrations,
    hardware: MeasuredHardware | None,
) -> Evaluation:
    candidates = from_configs(configs, workload.longest_row, cluster.world_size, workload.global_batch)
    return evaluate(
        shape,
        candidates,
        workload,
        cluster,
        memory_calibration(calibrations, shape),
        speed_calibration(calibrations, shape),
        unknown_speed=True,
        measured=hardware,
    )


def launch_fraction(
    shape: ModelShape | None, workload: Workload, cluster: Cluster, config: TrialConfig
) -> float | None:
    """Predicted fraction of forward and backward in which the device is idle because the host is still launching
    kernels or running hooks; None where the model's shape or the hardware's rates are unknown."""
    step = None if shape is None else _evaluate_configs(shape, workload, cluster, [config], NO_CALIBRATIONS, None).step
    if step is None:
        return None
    # The optimizer's parts mix work of the host and of the device.
    once_a_step = ("step", "offload")
    seconds = {name: float(np.ravel(values)[0]) for name, values in step.parts.items() if name not in once_a_step}
    return (seconds["launch"] + seconds["backend"]) / sum(seconds.values())


def predict_speeds(
    shape: ModelShape,
    workload: Workload,
    cluster: Cluster,
    configs: Sequence[TrialConfig],
    calibrations: Calibrations,
    hardware: MeasuredHardware | None = None,
) -> NDArray[np.float64] | None:
    """Predicted tokens_per_s_per_gpu of each configuration, 0 where it does not fit; None where the hardware's rates
    are unknown."""
    result = _evaluate_configs(shape, workload, cluster, configs, calibrations, hardware)
    speed = result.tokens_per_s_per_gpu
    if speed is None:
        return None
    return np.where(np.broadcast_to(result.fits, (len(configs),)), np.broadcast_to(speed, (len(configs),)), 0.0)


def predict_trial(
    shape: ModelShape | None,
    workload: Workload,
    cluster: Cluster,
    config: TrialConfig,
    calibrations: Calibrations,
    hardware: MeasuredHardware | None = None,
) -> TrialPrediction | None:
    """Prediction stored with a new trial, later compared with the trial's measurement; None for an unknown model
    shape."""
    if shape is None:
        return None
    result = _evaluate_configs(shape, workload, cluster, [config], calibrations, hardware)
    low, high = result.memory_calibration.bounds(float(np.ravel(result.memory.device)[0]) / GIB, BAND_DEVIATIONS)
    speed, calibration = result.tokens_per_s_per_gpu, speed_calibration(calibrations, shape)
    rate = None if speed is None else float(np.ravel(speed)[0])
    spread = float(np.exp(BAND_DEVIATIONS * calibration.sigma))
    return TrialPrediction(
        memory_gib=float(np.ravel(result.total_gib)[0]),
        low_memory_gib=low,
        high_memory_gib=high,
        memory_calibrated_on=result.memory_calibration.rows,
        tokens_per_s_per_gpu=rate,
        low_tokens_per_s_per_gpu=None if rate is None else rate / spread,
        high_tokens_per_s_per_gpu=None if rate is None else rate * spread,
        speed_calibrated_on=calibration.rows,
    )
