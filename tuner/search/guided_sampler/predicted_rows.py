"""Predictions of many configurations of one study, without calibration by measurements."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.prediction.calibration import PARTS, UNCALIBRATED
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import evaluate
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.search.guided_sampler.encoding import Array


@dataclass(frozen=True)
class PredictionBasis:
    """Everything besides the configuration that a prediction depends on."""

    shape: ModelShape
    workload: Workload
    cluster: Cluster
    hardware: MeasuredHardware | None = None


@dataclass(frozen=True)
class PredictedRows:
    """Predicted step seconds and memory of configurations, not calibrated by measurements; arrays with an entry for
    each configuration."""

    parts: Array | None
    """Predicted seconds of each part of a step (one row for each of `PARTS`); None where the hardware's rates are
    unknown."""
    peak_gib: Array
    """Predicted peak memory (GiB) of each configuration, comparable with measured peaks."""
    least_gib: Array
    """GiB that each configuration surely needs: its tensors at their peak, the CUDA context and the communication
    library, without the reserve that an allocator may give back."""
    host_gib: Array
    """GiB of host memory that each configuration needs per node."""


def predict_rows(basis: PredictionBasis, configs: Sequence[TrialConfig], host: float = 1.0) -> PredictedRows:
    """Predict time and memory of configurations. The only calibration applied is the factor `host` on the seconds of a
    kernel launch."""
    workload, cluster = basis.workload, basis.cluster
    candidates = from_configs(configs, workload.longest_row, cluster.world_size, workload.global_batch)
    result = evaluate(
        basis.shape,
        candidates,
        workload,
        cluster,
        speed_calibration=replace(UNCALIBRATED, host=host),
        unknown_speed=True,
        measured=basis.hardware,
    )
    memory, count = result.memory, len(configs)
    # CUDA trials measure the device's use, CPU ranks only their tensors; the prediction must mean the same figure.
    peak = memory.device if cluster.device == "cuda" else memory.allocated
    least = memory.allocated + memory.context + memory.communication
    parts = None
    if result.step is not None:
        columns = [np.broadcast_to(np.ravel(result.step.parts[name]), count) for name in PARTS]
        parts = np.maximum(np.column_stack(columns), 0.0)
    return PredictedRows(
        parts,
        peak_gib=np.broadcast_to(peak, count) / GIB,
        least_gib=np.broadcast_to(least, count) / GIB,
        host_gib=np.broadcast_to(memory.host, count) * cluster.gpus_per_node / GIB,
    )
