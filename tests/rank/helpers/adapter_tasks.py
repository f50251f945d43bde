"""Strategies and bounds of trials that train an adapter."""

from typing import Any

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
