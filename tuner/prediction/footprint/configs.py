"""Trial configurations as `Candidates`: which fields of each strategy the memory and speed models read."""

from collections.abc import Sequence

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.tuner.prediction.footprint.candidates import (
    DDP,
    FSDP1,
    FSDP2,
    FULL,
    MIB,
    NONE,
    SELECTIVE,
    ZERO,
    Candidates,
    from_rows,
)

_CHECKPOINTING = {"none": NONE, "selective": SELECTIVE, "full": FULL}


def from_configs(
    configs: Sequence[TrialConfig], sequence: int, world_size: int, global_batch: int | None = None
) -> Candidates:
    """Candidates of trial configurations on `world_size` ranks; without a global batch, no accumulation."""
    return from_rows([_row(config, sequence, world_size, global_batch) for config in configs])


def _row(config: TrialConfig, sequence: int, world_size: int, global_batch: int | None) -> dict[str, float]:
    row: dict[str, float] = {
        "sequence": sequence,
        "micro_batch": config.micro_batch,
        "checkpointing": _CHECKPOINTING[config.activation_checkpointing],
        "compiled": config.compile,
        "sync_last": config.strategy.sync_policy == "last",
        "sync_shard_only": config.strategy.sync_policy == "reduce_scatter",
        "accumulation": max(1, (global_batch or 0) // (config.micro_batch * world_size)),
    }
    strategy = config.strategy
    if isinstance(strategy, DdpConfig):
        return row | {
            "backend": DDP,
            "replicate": world_size,
            "ddp_bucket": strategy.bucket_cap_mb * MIB,
            "bucket_view": strategy.gradient_as_bucket_view,
        }
    if isinstance(strategy, Fsdp2Config):
        return row | _fsdp2_row(strategy)
    if isinstance(strategy, Fsdp1Config):
        return row | _fsdp1_row(strategy)
    return row | _zero_row(strategy, world_size)


def _fsdp2_row(strategy: Fsdp2Config) -> dict[str, float]:
    reshard = strategy.reshard_after_forward
    # One rank a shard group still frees its compute copies, unless they are kept.
    regather = max(2, strategy.dp_shard) if reshard is True else 1 if reshard is False else reshard
    return {
        "backend": FSDP2,
        "shard": strategy.dp_shard,
        "replicate": strategy.dp_replicate,
        "regather": regather,
        "forward_prefetch": 1 + strategy.forward_prefetch,
        "backward_prefetch": strategy.backward_prefetch,
        "blocks_per_unit": strategy.blocks_per_unit,
        "offload_optimizer": strategy.cpu_offload,
        "offload_parameters": strategy.cpu_offload,
    }


def _fsdp1_row(strategy: Fsdp1Config) -> dict[str, float]:
    return {
        "backend": FSDP1,
        "shard": strategy.dp_shard,
        "replicate": strategy.dp_replicate,
        "regather": 1 if strategy.keeps_parameters else strategy.dp_shard,
        "backward_prefetch": strategy.backward_prefetch is not None,
        "offload_optimizer": strategy.cpu_offload,
        "offload_parameters": strategy.cpu_offload,
    }


def _zero_row(strategy: ZeroConfig, world_size: int) -> dict[str, float]:
    optimizer = strategy.offload_optimizer
    share = 0.0 if optimizer is None else optimizer.ratio if strategy.stage == 3 else 1.0
    return {
        "backend": ZERO,
        "stage": strategy.stage,
        "shard": world_size,
        "regather": world_size,
        "reduce_bucket": strategy.reduce_bucket_size,
        "gather_bucket": strategy.allgather_bucket_size,
        "double_buffer": strategy.overlap_comm,
        "contiguous": strategy.contiguous_gradients,
        "prefetch_bucket": strategy.stage3_prefetch_bucket_size,
        "persistence": strategy.stage3_param_persistence_threshold,
        "reuse": strategy.stage3_max_reuse_distance,
        "max_live": strategy.stage3_max_live_parameters,
        "secondary": strategy.zero_hpz_partition_size,
        "offload_optimizer": share,
        "offload_parameters": strategy.offload_param is not None,
        "nvme_optimizer": optimizer is not None and optimizer.device == "nvme",
        "nvme_parameters": strategy.offload_param is not None and strategy.offload_param.device == "nvme",
    }
