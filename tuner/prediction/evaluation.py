"""Evaluation of many configurations at once: memory and speed from a cluster's measured rates, otherwise the
catalogue's."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.prediction.calibration import UNCALIBRATED, MemoryCalibration, SpeedCalibration
from shardtune.tuner.prediction.candidates import Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.footprint import MemoryTable, peak_memory
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import (
    CPU_NETWORK,
    CPU_RATES,
    Network,
    Rates,
    cluster_network,
    rates_of,
    ring_share,
    with_uplinks,
)
from shardtune.tuner.prediction.throughput import StepTable, step_times
from shardtune.tuner.prediction.throughput.measured_rates import fallback_network, measured_network, measured_rates
from shardtune.tuner.prediction.throughput.timed_rows import with_timed_rows


@dataclass(frozen=True)
class MachineRates:
    """Rates and network of a cluster's devices; None where neither a measurement nor the catalogue has them."""

    rates: Rates | None
    network: Network
    peak_flops: float | None


@lru_cache(maxsize=256)
def machine(
    cluster: Cluster,
    precision_is_fp32: bool = False,
    measured: MeasuredHardware | None = None,
    measured_on: Cluster | None = None,
) -> MachineRates:
    """Rates of a cluster: measured rates where there are any, otherwise the catalogue's with the figures that the
    cluster states. `measured_on`: cluster on which the rates were measured; None if it is this one.

    Raises:
        ValueError: a GPU that the catalogue does not have, and no measurement.
    """
    if measured is not None:
        rates: Rates | None = measured_rates(measured, cluster.device, precision_is_fp32)
        network = measured_network(measured, cluster, fallback_network(cluster))
        measured_nodes = max((collective.nodes for collective in measured.collectives), default=1)
        network = with_uplinks(network, cluster, ring_share(measured_on or cluster, measured_nodes))
        return MachineRates(rates, network, _known_peak(cluster))
    if cluster.device == "cpu":
        network = replace(CPU_NETWORK, gpus_per_node=cluster.gpus_per_node)
        return MachineRates(CPU_RATES, with_uplinks(network, cluster), None)
    gpu = catalogue.on_cluster(cluster)
    network = with_uplinks(cluster_network(gpu, cluster), cluster)
    try:
        rates = rates_of(gpu)
    except ValueError:
        rates = None
    if rates is not None and precision_is_fp32:
        rates = rates.in_fp32(gpu.architecture)
    return MachineRates(rates, network, gpu.peak_flops)


def _in_float16(host: MachineRates, cluster: Cluster) -> MachineRates:
    """Measured rates, in which the rate of float16 products comes from the catalogue if the GPU only emulates bfloat16,
    the dtype of the measurement."""
    if cluster.device == "cpu" or host.rates is None or not catalogue.dtypes_of(cluster).emulates("bfloat16"):
        return host
    native = rates_of(catalogue.on_cluster(cluster))
    rates = replace(host.rates, matmul_flops=native.matmul_flops, attention_flops=native.attention_flops)
    return replace(host, rates=rates)


def _known_peak(cluster: Cluster) -> float | None:
    try:
        return None if cluster.device == "cpu" else catalogue.find(cluster.gpu).peak_flops
    except ValueError:
        return None


@dataclass(frozen=True)
class Evaluation:
    """Predicted memory and speed of many candidate configurations."""

    candidates: Candidates
    memory: MemoryTable
    step: StepTable | None
    capacity: float
    """Bytes of memory that one device has."""
    memory_calibration: MemoryCalibration
    speed_calibration: SpeedCalibration
    tokens: NDArray[np.float64]
    """Number of tokens in a step for each rank, without padding, for each candidate."""
    scattered_step: StepTable | None = None
    """Predicted steps of a job whose neighbouring nodes are below different leaf switches; None if the cluster states
    no oversubscribed leaf switches, or speeds are unknown."""
    leaf_gpus: float = math.inf
    """Number of GPUs below one oversubscribed leaf switch; infinite if the cluster states none."""

    @property
    def slowness_if_scattered(self) -> NDArray[np.float64]:
        """Factor by which each candidate's step is longer where neighbouring nodes of the job are below different leaf
        switches; 1 where that makes no difference."""
        if self.step is None or self.scattered_step is None:
            return np.ones(self.candidates.size)
        seconds = self.speed_calibration.seconds
        ratio: NDArray[np.float64] = np.maximum(seconds(self.scattered_step.parts) / seconds(self.step.parts), 1.0)
        return np.broadcast_to(ratio, self.candidates.size)

    @property
    def total_gib(self) -> NDArray[np.float64]:
        """Predicted GiB that one device reports in use, for each candidate."""
        return self.memory.device / GIB * self.memory_calibration.factor

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Whether each candidate's tensors, the CUDA context and the communication library fit in a device's memory."""
        # Fragmentation is left out: where memory is short, the allocator gives cached blocks back.
        tight = self.memory.allocated + self.memory.context + self.memory.communication
        return tight * self.memory_calibration.factor <= self.capacity

    @property
    def tokens_per_s_per_gpu(self) -> NDArray[np.float64] | None:
        """Predicted tokens per second per GPU of each candidate, None where the hardware's rates are unknown."""
        if self.step is None:
            return None
        return self.tokens / self.speed_calibration.seconds(self.step.parts)


def evaluate(
    shape: ModelShape,
    candidates: Candidates,
    workload: Workload,
    cluster: Cluster,
    memory_calibration: MemoryCalibration | None = None,
    speed_calibration: SpeedCalibration = UNCALIBRATED,
    unknown_speed: bool = False,
    measured: MeasuredHardware | None = None,
    measured_on: Cluster | None = None,
) -> Evaluation:
    """Predict memory and speed of many candidate configurations.

    `measured_on`: cluster on which `measured` was measured; None if it is `cluster`.

    Raises:
        ValueError: a GPU that the catalogue does not have, unless its speed may stay unknown.
    """
    # Vectorised: about 0.5 ms for one candidate and 0.1 s for 20,000.
    dtypes, impl = Dtypes.of(workload.precision), program_of(shape, workload)
    if workload.float8 is not None and cluster.device == "cuda":
        # CPU ranks emulate float8 with products of the precision's dtype.
        dtypes = replace(dtypes, linear_bits=8)
    host = _host_rates(workload, cluster, unknown_speed, measured, measured_on)
    evaluation = Evaluation(
        candidates,
        peak_memory(shape, candidates, dtypes, impl, cluster.device),
        None,
        cluster.memory_gib * GIB,
        memory_calibration or MemoryCalibration(),
        speed_calibration,
        _tokens(candidates, workload, cluster),
    )
    if host is None or host.rates is None:
        return evaluation
    rates = host.rates if host.rates.serial else host.rates.on_host(speed_calibration.host)
    timed, network = with_timed_rows(candidates, workload), host.network
    step = step_times(shape, timed, dtypes, impl, rates, network)
    if network.uplinks is None:
        return replace(evaluation, step=step)
    scattered = step_times(shape, timed, dtypes, impl, rates, network.with_scattered_nodes)
    leaf_gpus = network.uplinks.nodes_per_leaf * network.gpus_per_node
    return replace(evaluation, step=step, scattered_step=scattered, leaf_gpus=leaf_gpus)


def program_of(shape: ModelShape, workload: Workload) -> Implementation:
    """Facts about the program that trains a workload, with the attention with which a worker built the model."""
    program = Implementation.of(workload)
    return replace(program, attention="eager") if shape.attends_eagerly else program


def _host_rates(
    workload: Workload,
    cluster: Cluster,
    unknown_speed: bool,
    measured: MeasuredHardware | None,
    measured_on: Cluster | None,
) -> MachineRates | None:
    """Rates of a cluster for a workload's dtypes; None if they are unknown and may stay so."""
    try:
        host = machine(cluster, workload.precision.computes_in_float32, measured, measured_on)
    except ValueError:
        if not unknown_speed:
            raise
        return None
    return _in_float16(host, cluster) if workload.precision.scales_loss and measured is not None else host


def _tokens(candidates: Candidates, workload: Workload, cluster: Cluster) -> NDArray[np.float64]:
    """Number of tokens in a step for each rank, without padding, for each candidate."""
    if workload.data is not None:
        return np.full(candidates.size, workload.tokens_per_step / cluster.world_size)
    return candidates.tokens * candidates.accumulation / candidates.stages
