"""Memory gate: rejects a configuration before it runs, only if by the predictor's own error it is very unlikely to
fit."""

from typing import Literal

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.objective import Objective
from shardtune.api_schemas.trials.predictions import TrialPrediction
from shardtune.api_schemas.trials.trial import Rejection
from shardtune.tuner.objective import available_gib
from shardtune.tuner.prediction.backends.registry import host_bytes
from shardtune.tuner.prediction.calibration import MemoryCalibration
from shardtune.tuner.prediction.candidates import Dtypes, Implementation
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.footprint import MemoryTable, peak_memory
from shardtune.tuner.prediction.footprint.activations import offloaded_inputs
from shardtune.tuner.prediction.model_shape import ModelShape

DEVIATIONS = 2.33
"""Number of standard deviations by which predicted memory must exceed the limit for the memory gate to reject a
configuration: 99 % of its runs would not fit."""
_MOST_TERMS = 4
_NAMES = {"masters": "master weights", "optimizer": "optimizer state"}
# gloo's threads let go of their buffers at different times.
_JITTER = 0.02
"""Relative standard deviation of peak memory between repeated runs on CPU ranks."""


def reject_if_too_large(
    config: TrialConfig,
    shape: ModelShape | None,
    workload: Workload,
    cluster: Cluster,
    objective: Objective,
    calibration: MemoryCalibration,
) -> Rejection | None:
    """Rejection of a configuration predicted not to fit in memory; None where it might fit, or the model's shape is
    unknown."""
    if shape is None:
        return None
    candidate = from_configs([config], workload.longest_row, cluster.world_size, workload.global_batch)
    dtypes, program = Dtypes.of(workload.precision), Implementation.of(workload)
    table = peak_memory(shape, candidate, dtypes, program, cluster.device)
    # Fragmentation does not count: where memory is short, the allocator gives cached blocks back.
    predicted = float((table.allocated + table.context + table.communication)[0])
    need, (least, _) = predicted * calibration.factor, calibration.bounds(predicted, DEVIATIONS)
    free = available_gib(cluster, objective)
    if least > free * GIB:
        rank_name = "GPU" if cluster.device == "cuda" else "CPU rank"
        limit = f"{memory(free, cluster.memory_gib)} ({memory(cluster.memory_gib)} less {objective.memory_headroom:.0%} headroom)"
        text = f"{_format_bytes(need)}, at the least {_format_bytes(least)}: {_describe_largest_terms(table, calibration.factor)}"
        return _build_rejection(
            config, least, free, "rank", f"each {rank_name} is predicted to hold {text}; it has {limit}"
        )
    on_node = float(table.host[0]) * cluster.gpus_per_node
    if cluster.device == "cuda" and on_node > cluster.host_memory_gib * GIB:
        without = candidate.with_values(pinned_optimizer=0, pinned_parameters=0)
        pageable = float(host_bytes(shape, without, dtypes, program, gloo=False)[0])
        pageable += float(offloaded_inputs(shape, candidate, dtypes, program, is_pinned=False)[0])
        return _build_rejection(
            config,
            on_node,
            cluster.host_memory_gib,
            "host",
            f"offloading needs {_format_bytes(on_node)} of host memory on each node "
            f"({cluster.gpus_per_node} ranks × {_format_bytes(float(table.host[0]))}); it has {memory(cluster.host_memory_gib)}"
            + _pinning_note(pageable * cluster.gpus_per_node, on_node),
        )
    inputs = float(offloaded_inputs(shape, candidate, dtypes, program, is_pinned=False)[0])
    on_node = (least + inputs) * cluster.gpus_per_node
    if inputs and cluster.device == "cpu" and on_node > cluster.host_memory_gib * GIB:
        return _build_rejection(
            config,
            on_node,
            cluster.host_memory_gib,
            "host",
            f"CPU ranks keep offloaded inputs in the memory that they share: {cluster.gpus_per_node} ranks × "
            f"({_format_bytes(least)} and {_format_bytes(inputs)} of inputs) need {_format_bytes(on_node)}; the node has "
            f"{memory(cluster.host_memory_gib)}",
        )
    return None


def _pinning_note(pageable_bytes: float, needed_bytes: float) -> str:
    """Note on the host memory that rounding of page-locked tensors costs; empty where it costs less than one percent."""
    if needed_bytes < 1.01 * pageable_bytes:
        return ""
    rounding = _format_bytes(needed_bytes - pageable_bytes)
    return f"; {rounding} of it are rounding: torch allocates a power of two for each page-locked tensor"


def near_the_edge(failure: Failure, prediction: TrialPrediction | None, cluster: Cluster, objective: Objective) -> bool:
    """Whether a run that exceeded memory might fit at a second try. If so, it is repeated once before the failure
    counts.

    A measured peak is compared with the memory limit; without a measured peak, the prediction's 90 % interval decides.
    """
    if failure.kind not in (FailureKind.OOM, FailureKind.OVER_LIMIT):
        return False
    if failure.kind is FailureKind.OVER_LIMIT and cluster.device == "cpu" and failure.peak_allocated_gib is not None:
        return failure.peak_allocated_gib <= available_gib(cluster, objective) * (1 + _JITTER)
    # An allocator fails at the device's whole memory, a run over the limit at the part that it may use.
    limit = cluster.memory_gib if failure.kind is FailureKind.OOM else available_gib(cluster, objective)
    return prediction is not None and prediction.low_memory_gib <= limit <= prediction.high_memory_gib


def _format_bytes(size: float) -> str:
    return memory(size / GIB)


def _describe_largest_terms(table: MemoryTable, factor: float) -> str:
    sizes = {name: float(values.flat[0]) for name, values in table.terms.items()}
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    parts = [
        f"{_NAMES.get(name, name)} {_format_bytes(size * factor)}" for name, size in ordered[:_MOST_TERMS] if size > 0
    ]
    remaining = sum(size for _, size in ordered[_MOST_TERMS:])
    return ", ".join([*parts, f"other {_format_bytes(remaining * factor)}"] if remaining > 0 else parts)


def _build_rejection(
    config: TrialConfig, needed_bytes: float, free: float, memory_of: Literal["rank", "host"], reason: str
) -> Rejection:
    return Rejection(
        config=config,
        needed_gib=needed_bytes / GIB,
        available_gib=free,
        memory_of=memory_of,
        reason=f"{config.describe()}: {reason}",
    )
