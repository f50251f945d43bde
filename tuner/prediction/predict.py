"""Prediction of one configuration's memory, speed and limits.

Memory comes from tuner.prediction.footprint, time from tuner.prediction.throughput, hardware from
tuner.prediction.catalogue. Pure; imports no torch.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.base import GIB, Bound
from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.strategies import (
    TrialConfig,
    context_parallel,
    optimizer_support,
    pipeline_parallel,
    sample_groups,
    tensor_parallel,
)
from shardtune.api_schemas.strategies.recipe_support import float8_support, fp16_support, lora_support
from shardtune.api_schemas.training.padding import padding_of
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.predictions import (
    MemoryPrediction,
    MemoryTerm,
    Prediction,
    SpeedPrediction,
    Verdict,
)
from shardtune.tuner.prediction import headroom, neighbours
from shardtune.tuner.prediction.calibration import (
    BAND_DEVIATIONS,
    PARTS,
    UNCALIBRATED,
    MemoryCalibration,
    SpeedCalibration,
)
from shardtune.tuner.prediction.candidates import Candidates, Dtypes
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import Evaluation, evaluate, machine, program_of
from shardtune.tuner.prediction.footprint import peak_memory
from shardtune.tuner.prediction.footprint.peak import MOMENTS, SOURCES
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.throughput import StepTable, resource_seconds

_UNPACKING_SIGMA = 0.25
"""Additional standard deviation of the logarithm of a predicted speed if weights are in 4 bits. The kernel that unpacks
them may run at half the memory bandwidth; a step of one short micro batch is then slower by about this fraction."""


_MOST_TOGETHER = 50
"""Maximum number of configurations in one evaluation. Each is evaluated at several hundred sizes, and a request may name
1,000 configurations: all at once would fill memory, and a cache of such answers would keep it filled."""


class _Calibrations(NamedTuple):
    """Corrections of predictions that were learnt from measured trials: of memory, of speed, and of the hardware's
    rates."""

    memory: MemoryCalibration | None
    speed: SpeedCalibration
    measured: MeasuredHardware | None

    def evaluate(self, shape: ModelShape, candidates: Candidates, workload: Workload, cluster: Cluster) -> Evaluation:
        """Evaluate candidates with these corrections."""
        return evaluate(shape, candidates, workload, cluster, self.memory, self.speed, measured=self.measured)


# The calculator's form sends a request after every keystroke, and most of its configurations were in the one before.
@lru_cache(maxsize=512)
def predict(
    shape: ModelShape,
    workload: Workload,
    cluster: Cluster,
    config: TrialConfig,
    memory_calibration: MemoryCalibration | None = None,
    speed_calibration: SpeedCalibration = UNCALIBRATED,
    limits: bool = True,
    measured: MeasuredHardware | None = None,
) -> Prediction:
    """Predict memory, speed and limits of one configuration; `limits=False` leaves out the largest fitting sizes, which
    take longest to compute.

    Raises:
        ValueError: the axes of the mesh do not multiply up to the cluster's ranks, or the catalogue does not have the
            GPU.
    """
    calibrations = _Calibrations(memory_calibration, speed_calibration, measured)
    return _predict(shape, workload, cluster, (config,), calibrations, limits)[0]


def predict_each(
    shape: ModelShape,
    workload: Workload,
    cluster: Cluster,
    configs: tuple[TrialConfig, ...],
    memory_calibration: MemoryCalibration | None = None,
    speed_calibration: SpeedCalibration = UNCALIBRATED,
    measured: MeasuredHardware | None = None,
) -> tuple[Prediction, ...]:
    """Predict memory, speed and limits (the longest sequence and the largest micro batch that fit) of several
    configurations in one call.

    Raises:
        ValueError: as in `predict`.
    """
    calibrations = _Calibrations(memory_calibration, speed_calibration, measured)
    parts = (configs[first : first + _MOST_TOGETHER] for first in range(0, len(configs), _MOST_TOGETHER))
    return tuple(row for part in parts for row in _predict_together(shape, workload, cluster, part, calibrations))


@lru_cache(maxsize=64)
def _predict_together(
    shape: ModelShape,
    workload: Workload,
    cluster: Cluster,
    configs: tuple[TrialConfig, ...],
    calibrations: _Calibrations,
) -> tuple[Prediction, ...]:
    """Predict a few configurations by one evaluation, at most `_MOST_TOGETHER` of them."""
    return _predict(shape, workload, cluster, configs, calibrations, True)


def _predict(
    shape: ModelShape,
    workload: Workload,
    cluster: Cluster,
    configs: tuple[TrialConfig, ...],
    calibrations: _Calibrations,
    limits: bool,
) -> tuple[Prediction, ...]:
    if not configs:
        return ()
    for config in configs:
        _check(shape, workload, cluster, config)
    candidates = from_configs(configs, workload.longest_row, cluster.world_size, workload.global_batch)
    result = calibrations.evaluate(shape, candidates, workload, cluster)
    peak = machine(cluster, measured=calibrations.measured).peak_flops
    speeds = [_predict_speed(shape, result, workload, peak, index) for index in range(len(configs))]
    largest, sizes = [(0, 0)] * len(configs), 1
    if limits:
        # Only memory decides the limits, so only memory is evaluated at the other sizes.
        wider, sizes = headroom.with_other_sizes(candidates), headroom.SIZES
        memory = peak_memory(shape, wider, Dtypes.of(workload.precision), program_of(shape, workload), cluster.device)
        result = replace(result, memory=memory)
        largest = headroom.largest_sizes(shape, result, cluster.host_memory_gib * GIB / cluster.gpus_per_node)
    predictions = []
    for index, (config, speed, (longest, largest_micro_batch)) in enumerate(zip(configs, speeds, largest, strict=True)):
        memory_prediction, change = _predict_memory(result, cluster, index * sizes), None
        if limits and (memory_prediction.margin_gib < 0 or memory_prediction.verdict == "does not fit"):
            change = _cheapest_change(shape, workload, cluster, config, calibrations)
        prediction = Prediction(
            config=config,
            description=config.describe(),
            memory=memory_prediction,
            speed=None if speed is None else speed.model_copy(update=_padding(workload, cluster, config)),
            longest_sequence=longest,
            largest_micro_batch=largest_micro_batch,
            cheapest_change=change,
        )
        predictions.append(prediction)
    return tuple(predictions)


def _check(shape: ModelShape, workload: Workload, cluster: Cluster, config: TrialConfig) -> None:
    """Reject a configuration that cannot train this model on this cluster.

    Raises:
        ValueError: an axis of the mesh (such as tensor parallel) has a size that the ranks, the workload or the model
            do not allow; names the axis.
    """
    config.strategy.check_ranks(cluster.world_size)
    sample_groups.check(config, cluster, workload)
    stages = config.strategy.stages
    tensor_parallel.check_widths(config.strategy.model_parallel // stages, config.context_parallel, *shape.tensor)
    pipeline_parallel.check_blocks(stages, *shape.pipeline, config.strategy.virtual_stages)
    context_parallel.check_heads(config.context_parallel, *shape.context)
    sample_groups.check_experts(config, *shape.divisible_experts)


def _predict_memory(result: Evaluation, cluster: Cluster, index: int) -> MemoryPrediction:
    table, factor = result.memory, result.memory_calibration.factor
    sizes = {name: _at(values, index) for name, values in table.terms.items()}
    sizes |= {
        "fragmentation": _at(table.fragmentation, index),
        "device context": _at(table.context, index),
        "communication library": _at(table.communication, index),
    }
    total = float(_at(result.total_gib, index))
    # `total` has the factor already.
    low, high = replace(result.memory_calibration, factor=1.0).bounds(total)
    host = _at(table.host, index) * cluster.gpus_per_node / GIB
    verdict: Verdict = "fits" if high <= cluster.memory_gib else "may fit"
    if low > cluster.memory_gib or host > cluster.host_memory_gib:
        verdict = "does not fit"
    return MemoryPrediction(
        terms=tuple(MemoryTerm(name=n, gib=float(s) / GIB * factor, source=SOURCES[n]) for n, s in sizes.items()),
        moment=MOMENTS[int(_at(table.moment, index))],
        allocated_gib=float(_at(table.allocated, index)) / GIB * factor,
        reserved_gib=float(_at(table.reserved, index)) / GIB * factor,
        total_gib=total,
        low_gib=low,
        high_gib=high,
        capacity_gib=cluster.memory_gib,
        verdict=verdict,
        margin_gib=cluster.memory_gib - total,
        host_gib_per_node=float(host),
    )


def _at(values: NDArray[np.float64], index: int) -> float:
    return float(values[index] if values.ndim and values.size > 1 else values.flat[0])


def _predict_speed(
    shape: ModelShape, result: Evaluation, workload: Workload, peak: float | None, index: int
) -> SpeedPrediction | None:
    if result.step is None:
        return None
    fit = result.speed_calibration
    parts = {name: _at(result.step.parts[name], index) * fit.factors[name] for name in PARTS}
    seconds = sum(parts.values())
    rate = _at(result.tokens, index) / seconds
    # No published run says how fast 4-bit weights are unpacked; trials on this hardware do.
    is_unchecked = shape.packed_parameters > 0 and not fit.rows
    fractions = _resource_fractions(result.step, parts, index)
    spread = np.exp(BAND_DEVIATIONS * np.hypot(fit.sigma, _UNPACKING_SIGMA if is_unchecked else 0.0))
    return SpeedPrediction(
        tokens_per_s_per_gpu=rate,
        low_tokens_per_s_per_gpu=float(rate / spread / _at(result.slowness_if_scattered, index)),
        high_tokens_per_s_per_gpu=float(rate * spread),
        step_time_s=seconds,
        mfu=rate * shape.model_flops_per_token(workload.attended_length) / peak if peak else None,
        exposed_communication_fraction=parts["communication"] / seconds,
        bound_by=next(iter(fractions)),
        resource_fractions=fractions,
        parts_s=parts,
        calibrated_on=fit.rows,
    )


def _padding(workload: Workload, cluster: Cluster, config: TrialConfig) -> dict[str, float]:
    """Return the field of a prediction that states the fraction of padding; empty where all samples have one length."""
    plan = workload.sample_plan
    if plan is None:
        return {}
    split = config.split(workload.global_batch, cluster.world_size)
    return {"padding_fraction": padding_of(plan, split).padding_fraction}


def _resource_fractions(step: StepTable, parts: dict[str, float], index: int) -> dict[Bound, float]:
    """Fraction of the step by the resource that takes it, largest first: the first is the bottleneck."""
    # Communication is bound by the slowest link: the network where a group spans nodes.
    network = _at(step.network_bound, index) > 0
    seconds = {
        _over_network(name) if network else name: float(value) for name, value in resource_seconds(parts).items()
    }
    largest_first = sorted(seconds.items(), key=lambda resource: -resource[1])
    total = sum(seconds.values())
    return {name: value / total for name, value in largest_first if value > 0}


def _over_network(name: Bound) -> Bound:
    return "network" if name == "intra-node link" else name


def _cheapest_change(
    shape: ModelShape, workload: Workload, cluster: Cluster, config: TrialConfig, calibrations: _Calibrations
) -> Any:
    near = [
        neighbour
        for neighbour in neighbours.neighbours(config, cluster)
        if optimizer_support.can_train(neighbour.config, workload.optimizer)
        and float8_support.can_train(neighbour.config, workload.float8)
        and lora_support.can_train(neighbour.config, workload.adapter)
        and fp16_support.can_train(neighbour.config, workload)
    ]
    if not near:
        return None
    candidates = from_configs(
        [change.config for change in near], workload.longest_row, cluster.world_size, workload.global_batch
    )
    result = calibrations.evaluate(shape, candidates, workload, cluster)
    # A neighbour that offloads must fit into the host's memory, too.
    on_host = result.memory.host * cluster.gpus_per_node / GIB <= cluster.host_memory_gib
    return neighbours.cheapest(near, result.fits & on_host, result.total_gib, result.tokens_per_s_per_gpu)
