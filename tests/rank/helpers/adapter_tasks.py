"""Strategies, bounds and predicted memory of trials that train an adapter."""

from typing import Any

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.tuner.prediction.candidates import Dtypes, Implementation
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.footprint import peak_memory
from shardtune.tuner.prediction.model_shape import from_config
from shardtune.tuner.prediction.traced_shape import with_adapter
from tests.support.ranks.tiny_tasks import LLAMA

TWO_BLOCKS = LLAMA | {"num_hidden_layers": 2}
# Values of adapters nearly cancel in their sum, which therefore differs by more than their squares' sum.
FP32 = {"loss": 1e-6, "grad_norm": 1e-5, "parameter_sum": 3e-5, "parameter_square_sum": 1e-7}
BF16 = {"loss": 5e-4, "grad_norm": 3e-2}
_ZERO = {"kind": "zero", "reduce_bucket_size": 50_000, "allgather_bucket_size": 50_000}
_WHOLE_RELEASE = {"stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    "zero-1": _ZERO | {"stage": 1},
    "zero-2": _ZERO | {"stage": 2},
    "zero-3": _ZERO | _WHOLE_RELEASE | {"stage": 3},
    "fsdp1": {"kind": "fsdp1", "dp_shard": 2},
    "fsdp1 original": {"kind": "fsdp1", "dp_shard": 2, "use_orig_params": True},
    "fsdp2": {"kind": "fsdp2", "dp_shard": 2},
}


def predicted_gib(task: TrialTask) -> float:
    """Predicted memory of tensors at the peak."""
    workload, config = task.workload, task.model.config
    shape = with_adapter(from_config(config), task.model.model_type, workload.adapter)
    candidate = from_configs([task.config], workload.sequence_length, task.cluster.world_size, workload.global_batch)
    dtypes, program = Dtypes.of(workload.precision), Implementation.of(workload)
    return float(peak_memory(shape, candidate, dtypes, program, task.cluster.device).allocated[0]) / GIB
