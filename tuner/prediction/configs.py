"""Conversion of trial configurations to `Candidates`: the fields that every backend has; each backend's record adds its
own fields."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.tuner.prediction.backends.record import PredictedBackend, Row
from shardtune.tuner.prediction.backends.registry import BACKENDS
from shardtune.tuner.prediction.candidates import (
    ALL_PRODUCTS,
    ATTENTION_ALONE,
    FULL,
    NONE,
    SECOND_PRODUCTS,
    SELECTIVE,
    Candidates,
    from_rows,
)

_CHECKPOINTING = {"none": NONE, "selective": SELECTIVE, "full": FULL}
_KEEPS = {"products": ALL_PRODUCTS, "second_products": SECOND_PRODUCTS, "attention": ATTENTION_ALONE}


def from_configs(
    configs: Sequence[TrialConfig],
    sequence: int,
    world_size: int,
    global_batch: int | None = None,
    backends: Mapping[str, PredictedBackend[Any]] = BACKENDS,
) -> Candidates:
    """Candidates (arrays for the predictor) of trial configurations on `world_size` ranks; without a global batch, no
    accumulation."""
    return from_rows(
        [
            _shared_fields(config, sequence, world_size, global_batch)
            | backends[config.backend].row(config.strategy, world_size)
            for config in configs
        ]
    )


def _shared_fields(config: TrialConfig, sequence: int, world_size: int, global_batch: int | None) -> Row:
    return {
        "sequence": sequence,
        "micro_batch": config.micro_batch,
        "context": config.context_parallel,
        "checkpointing": _CHECKPOINTING[config.activation_checkpointing],
        "checkpoint_every": config.checkpoint_every,
        "selective_keeps": _KEEPS[config.selective_keeps],
        "activation_offload": config.activation_offload,
        "mlp_slices": config.mlp_slices,
        "loss_chunk": config.chunk_tokens or 0,
        "loss_compiled": config.loss_compile,
        "compiled": config.compile,
        "activation_budget": config.activation_memory_budget,
        "keeps_freed": config.malloc == "keep",
        "sync_last": config.strategy.sync_policy == "last",
        "sync_shard_only": config.strategy.sync_policy == "reduce_scatter",
        # At least 1: a published configuration's batch need not divide.
        "accumulation": max(1, (global_batch or 0) // (config.micro_batch * config.data_ranks(world_size))),
    }
