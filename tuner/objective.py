"""Objective of a finished run: the memory that the run may use, and whether the run stayed within it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtune.api_schemas.formatting import memory as in_words
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.objective import Objective

if TYPE_CHECKING:
    # `shardtune predict` asks for the available memory only, and measurements take long to import.
    from shardtune.api_schemas.trials.measurements import Measurement


def available_gib(cluster: Cluster, objective: Objective) -> float:
    """GiB of memory that one rank may use: its device's memory, less the fraction that must stay free."""
    return cluster.memory_gib * (1 - objective.memory_headroom)


def allocator_retry_failure(retries: int | None, ooms: int | None, period: str) -> Failure | None:
    """Failure of a run in which the CUDA allocator had to empty its cache to continue; None where it did not have to.

    `period`: name of the part of the run, with which the message begins.
    """
    # A retry synchronises the device and slows the run, and the next run with the same memory may fail outright.
    times = (retries or 0) + (ooms or 0)
    if not times:
        return None
    message = (
        f"{period} the CUDA allocator ran out of memory {times} times and had to empty its cache: the configuration is too "
        "near the limit"
    )
    return Failure(kind=FailureKind.OVER_LIMIT, message=message)


def over_limit_failure(measurement: Measurement, cluster: Cluster, objective: Objective) -> Failure | None:
    """Failure of a run that used more memory than allowed; None where it did not, or memory was not measured.

    On a GPU the device's own figure counts (CUDA context and communication library included), else the allocator's
    reserved memory; on CPU ranks the allocated tensors count.
    """
    memory = measurement.memory
    figures = [
        ("device memory in use", memory.device_used_gib),
        ("reserved memory", memory.peak_reserved_gib),
        ("allocated memory", memory.peak_allocated_gib),
    ]
    # A report has no more than the first losses of a long run.
    counted = len(measurement.trajectory) + measurement.warmup_steps + measurement.measured_steps
    period = f"over {max(counted, len(measurement.losses))} steps"
    failure = allocator_retry_failure(memory.allocator_retries, memory.allocator_ooms, period)
    if failure is not None:
        return failure.model_copy(update={"peak_allocated_gib": memory.peak_allocated_gib})
    limit = available_gib(cluster, objective)
    for label, used in figures:
        if used is None:
            continue
        if used <= limit:
            return None
        return Failure(
            kind=FailureKind.OVER_LIMIT,
            message=(
                f"peak {label} of {in_words(used, cluster.memory_gib)} exceeds {in_words(limit, cluster.memory_gib)} "
                f"({in_words(cluster.memory_gib)} less {objective.memory_headroom:.0%} headroom)"
            ),
            peak_allocated_gib=memory.peak_allocated_gib,
        )
    return None
