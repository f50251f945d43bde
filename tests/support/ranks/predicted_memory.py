"""Peak memory that the product predicts for a tiny task."""

from typing import Any

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.tuner.prediction.candidates import Dtypes, Implementation
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.footprint import peak_memory
from shardtune.tuner.prediction.shapes.config_shape import from_config
from shardtune.tuner.prediction.traced_shape import with_adapter


def predicted_gib(task: TrialTask, model: dict[str, Any] | None = None) -> float:
    """GiB of tensors on one rank at the peak, from the formulas of the architecture of `model`, or of the task's own."""
    workload, cluster = task.workload, task.cluster
    candidate = from_configs([task.config], workload.sequence_length, cluster.world_size, workload.global_batch)
    shape = from_config(task.model.config if model is None else model)
    if workload.adapter is not None:
        shape = with_adapter(shape, task.model.model_type, workload.adapter)
    dtypes, program = Dtypes.of(workload.precision), Implementation.of(workload)
    return float(peak_memory(shape, candidate, dtypes, program, cluster.device).allocated[0]) / GIB
