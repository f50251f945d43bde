"""Fields of FSDP1's configuration. Its prefetch knobs have names of their own in the search space, because FSDP2's are
depths."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from shardtune.api_schemas.knobs import Key, Knob, When, Written
from shardtune.api_schemas.strategies.base import StrategySchema
from shardtune.api_schemas.strategies.fields.common_knobs import CPU_OFFLOAD, DP_REPLICATE, DP_SHARD, GRAD_SYNC

ShardingStrategy = Literal["FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "NO_SHARD"]
"""Sharding strategy of FSDP1, by its name in PyTorch. `SHARD_GRAD_OP` and `_HYBRID_SHARD_ZERO2` keep gathered
parameters from forward to backward."""

_GATHERS = When(on_gpu=True, above={"dp_shard": 1})


class Fsdp1Fields(StrategySchema):
    """Settings of FSDP1, and sizes of the groups over which it replicates and shards."""

    kind: Literal["fsdp1"] = "fsdp1"
    sharding_strategy: Annotated[
        ShardingStrategy,
        Knob(
            help="FSDP1: what is sharded, and whether gathered parameters are kept from forward to backward.",
            places_states=True,
            exports={
                "script": Written("`sharding_strategy`"),
                "accelerate": Written("`fsdp_sharding_strategy`"),
            },
            values_text="`FULL_SHARD`, `SHARD_GRAD_OP`; where world has a proper divisor also `HYBRID_SHARD`, "
            "`_HYBRID_SHARD_ZERO2`",
            when_text="world above 1",
            upstream="`sharding_strategy`; the hybrid ones take `dp_shard` and `dp_replicate` as `device_mesh`",
        ),
    ] = "FULL_SHARD"
    """FSDP1 sharding strategy; `NO_SHARD` (deprecated in PyTorch) replicates the model as DDP does."""
    dp_replicate: Annotated[
        int,
        replace(
            DP_REPLICATE,
            exports={
                "script": Written("`device_mesh`"),
                "accelerate": Written("a note: Accelerate replicates across nodes"),
            },
            values_text="world / `dp_shard`",
            when_text="follows",
            upstream="`device_mesh`, first axis",
        ),
    ] = Field(default=1, ge=1)
    """Number of replicas of the sharded model (groups of ranks). Values above 1 are allowed only with the hybrid
    sharding strategies and `NO_SHARD`."""
    dp_shard: Annotated[
        int,
        replace(
            DP_SHARD,
            exports={
                "script": Written("`device_mesh`"),
                "accelerate": Written("a note: Accelerate shards within a node"),
            },
            values_text="world; hybrid: proper divisors of world",
            when_text="hybrid strategies",
            upstream="`device_mesh`, second axis",
        ),
    ] = Field(ge=1)
    """Number of ranks over which parameters, gradients and optimizer state are sharded (the size of a shard group)."""
    backward_prefetch: Annotated[
        Literal["BACKWARD_PRE", "BACKWARD_POST"] | None,
        Knob(
            knob="fsdp1_backward_prefetch",
            help="FSDP1: when backward gathers the next unit: before the current one's gradients, after them, or not ahead.",
            tries=("BACKWARD_PRE", "BACKWARD_POST", "none"),
            when=_GATHERS,
            accepts_own_values=True,
            lightest="none",
            without_term="while one unit is used another is there, gathered ahead or not freed yet",
            exports={
                "script": Written("`backward_prefetch`"),
                "accelerate": Written("`fsdp_backward_prefetch`"),
            },
            values_text="`BACKWARD_PRE` (the default), `BACKWARD_POST`, `none`",
            when_text="GPUs, `dp_shard` above 1, and parameters are freed after forward",
            upstream="`backward_prefetch`",
        ),
    ] = "BACKWARD_PRE"
    """Time at which backward gathers the next FSDP unit: before the gradients of the current unit are computed, after
    they are computed, or only when the unit is needed."""
    forward_prefetch: Annotated[
        bool,
        Knob(
            knob="fsdp1_forward_prefetch",
            help="FSDP1: the next unit is gathered before the current forward (`forward_prefetch=True`).",
            tries=(False, True),
            when=_GATHERS,
            accepts_own_values=True,
            lightest=False,
            without_term="forward's gathers count as hidden already, and memory peaks in backward",
            exports={
                "script": Key("forward_prefetch"),
                "accelerate": Key("fsdp_forward_prefetch"),
            },
            upstream="`forward_prefetch`",
        ),
    ] = False
    """Whether the next FSDP unit is gathered before the forward of the current unit begins. This helps if the host
    launches kernels slowly."""
    limit_all_gathers: Annotated[
        bool,
        Knob(
            help="FSDP1: the host waits rather than gather more than two units ahead.",
            tries=(True, False),
            when=_GATHERS,
            accepts_own_values=True,
            lightest=True,
            without_term="how far the host runs ahead is not known before a run",
            exports={
                "script": Key("limit_all_gathers"),
                "accelerate": Written("`FullyShardedDataParallelPlugin(limit_all_gathers=…)` in your script"),
            },
        ),
    ] = True
    """Whether the host waits before it gathers more than two FSDP units ahead. If False, it does not wait, and more
    memory is used."""
    use_orig_params: Annotated[
        bool,
        Knob(
            help="FSDP1: the optimizer sees the model's own parameters, not flat ones.",
            tries=(False, True),
            lightest=False,
            makes_twins=True,
            without_term="views of the same flat parameters",
            exports={"script": Key("use_orig_params"), "accelerate": Key("fsdp_use_orig_params")},
            values_text="`false`, `true`; compiled only `true`",
        ),
    ] = False
    """Whether the optimizer sees the model's own parameters instead of one flat parameter per FSDP unit.
    `torch.compile` requires it."""
    cpu_offload: Annotated[
        bool,
        replace(
            CPU_OFFLOAD,
            exports={"script": Written("`cpu_offload`"), "accelerate": Key("fsdp_offload_params")},
            when_text="GPUs; with accumulation only where `grad_sync` may be `last`",
            upstream="`CPUOffload(offload_params=…)`",
        ),
    ] = False
    """Whether parameter shards, gradients and optimizer state are stored in page-locked memory of the host. Only on
    GPUs."""
    grad_sync: Annotated[
        Literal["every", "last"],
        replace(
            GRAD_SYNC,
            exports={
                "script": Written("`no_sync` around all micro batches but the last"),
                "accelerate": Written("`GradientAccumulationPlugin(sync_each_batch=…)` in your script"),
            },
            when_text="accumulation above 1, world above 1; as below",
        ),
    ] = "every"
    """Time at which gradients are reduced during gradient accumulation: after each micro batch (`every`), or after the
    last one (`last`). `last` accumulates under `no_sync`, and keeps unsharded gradients in the dtype of the
    computation."""
