"""Fields of the section `zero_optimization` of DeepSpeed's configuration."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from shardtune.api_schemas.knobs import Key, Knob, Lost, When, Written
from shardtune.api_schemas.strategies.base import StrategySchema
from shardtune.api_schemas.strategies.fields.common_knobs import PINNED
from shardtune.api_schemas.strategies.fields.offload import PIN, Offload

_BELOW_3, _STAGE_3 = {"stage": (1, 2)}, {"stage": (3,)}
_SIZE = Knob(help="", accepts_own_values=True, lightest="min", makes_twins=True)
"""Declaration of a knob whose value is a number of elements, such as a bucket size. The number only changes how the
same work is divided."""


class ZeroFields(StrategySchema):
    """Settings of DeepSpeed ZeRO, its offload and its compiler. Sizes count elements, not bytes."""

    kind: Literal["zero"] = "zero"
    stage: Annotated[
        Literal[1, 2, 3],
        Knob(
            help="DeepSpeed ZeRO: 1 shards optimizer state, 2 gradients too, 3 parameters too.",
            name="ZeRO stage",
            tries=(1, 2, 3),
            places_states=True,
            exports={"deepspeed": Key("stage")},
        ),
    ]
    reduce_bucket_size: Annotated[
        int,
        replace(
            _SIZE,
            help="DeepSpeed: elements reduced per collective.",
            exports={"deepspeed": Key("reduce_bucket_size")},
            values_text="h², 1, 2 and 4 blocks, 5·10⁸ (the default), none above the model",
            when_text="always (buckets are allocated in full, so they cost memory even on one rank)",
        ),
    ] = Field(default=500_000_000, ge=1)
    """Number of gradient elements that one collective reduces. A larger value gives fewer launches, and uses more
    memory during backward."""
    overlap_comm: Annotated[
        bool,
        Knob(
            help="DeepSpeed: gradients are reduced while backward still computes.",
            tries=(False, True),
            when=When(on_gpu=True, has_peers=True),
            accepts_own_values=True,
            lightest=False,
            exports={"deepspeed": Key("overlap_comm")},
            when_text="GPUs, world above 1. On gloo nothing overlaps",
        ),
    ] = True
    """Whether gradients are reduced while backward is still computing. This takes the memory of a second bucket."""
    contiguous_gradients: Annotated[
        bool,
        Knob(
            help="DeepSpeed: gradients are copied into one buffer as they appear.",
            tries=(True, False),
            accepts_own_values=True,
            lightest=False,
            makes_twins=True,
            exports={"deepspeed": Key("contiguous_gradients")},
            when_text="not at stages 1 and 2 with an offloaded optimizer, which force it",
        ),
    ] = True
    """Whether gradients are copied into one contiguous buffer as they are produced, which avoids that memory
    fragments."""
    allgather_bucket_size: Annotated[
        int,
        replace(
            _SIZE,
            help="DeepSpeed: elements gathered per collective after the step.",
            minimum=2,
            step=2,
            when=When(has_peers=True),
            within=_BELOW_3,
            exports={"deepspeed": Key("allgather_bucket_size")},
            values_text="1 and 4 blocks, the default, the model",
            when_text="stages 1 and 2, world above 1; stage 3 ignores it",
        ),
    ] = Field(default=500_000_000, ge=1)
    """Number of parameter elements that one collective gathers after the optimizer's step. ZeRO stages 1 and 2 use it;
    stage 3 ignores it."""
    round_robin_gradients: Annotated[
        bool,
        Knob(
            help="DeepSpeed: ranks take turns in the order in which gradients are copied.",
            tries=(False, True),
            when=When(has_peers=True),
            within=_BELOW_3,
            lightest=False,
            makes_twins=True,
            without_term="the same copies in another order",
            exports={"deepspeed": Key("round_robin_gradients")},
        ),
    ] = False
    """Whether ranks take turns in the order of gradients, so that at any moment they copy different ones to the host or
    to their partition. Only for ZeRO stages 1 and 2."""
    stage3_prefetch_bucket_size: Annotated[
        int,
        replace(
            _SIZE,
            help="ZeRO-3: elements of parameters gathered ahead of their use.",
            within=_STAGE_3,
            exports={"deepspeed": Key("stage3_prefetch_bucket_size")},
            values_text="0, h², 1 and 2 blocks, 5·10⁷ (the default), none above the model",
            when_text="stage 3, also on CPU ranks: nothing overlaps there, but gathering ahead merges collectives and takes memory",
        ),
    ] = Field(default=50_000_000, ge=0)
    """Number of parameter elements that ZeRO stage 3 gathers ahead of their use."""
    stage3_param_persistence_threshold: Annotated[
        int,
        replace(
            _SIZE,
            help="ZeRO-3: parameters with fewer elements are never sharded.",
            within=_STAGE_3,
            exports={"deepspeed": Key("stage3_param_persistence_threshold")},
            values_text="0, 10 × hidden, 10⁵ (the default), h²",
        ),
    ] = Field(default=100_000, ge=0)
    """Number of elements below which ZeRO stage 3 does not partition a parameter, but keeps it whole on every rank."""
    stage3_max_live_parameters: Annotated[
        int,
        replace(
            _SIZE,
            help="ZeRO-3: elements that may be gathered at once.",
            within=_STAGE_3,
            exports={"deepspeed": Key("stage3_max_live_parameters")},
            values_text="2 and 8 blocks, the default or the model",
            when_text="stage 3 with a prefetch bucket: 0.19.8 reads it only to cap prefetching",
        ),
    ] = Field(default=1_000_000_000, ge=0)
    """Maximum number of parameter elements that ZeRO stage 3 keeps gathered at the same time."""
    stage3_max_reuse_distance: Annotated[
        int,
        replace(
            _SIZE,
            help="ZeRO-3: parameters that are used again within this number of elements stay gathered.",
            within=_STAGE_3,
            exports={"deepspeed": Key("stage3_max_reuse_distance")},
            values_text="0, 2 blocks, 10⁹ (the default)",
        ),
    ] = Field(default=1_000_000_000, ge=0)
    """Number of elements up to which ZeRO stage 3 keeps a gathered parameter for its next use: if fewer elements are
    used before it is needed again, it is not released."""
    sub_group_size: Annotated[
        int,
        replace(
            _SIZE,
            help="ZeRO-3: elements the optimizer updates at a time.",
            within=_STAGE_3,
            exports={"deepspeed": Key("sub_group_size")},
            values_text="a rank's share of 1 and of 4 blocks, 10⁹ (the default)",
        ),
    ] = Field(default=1_000_000_000, ge=1)
    """Number of elements that the optimizer updates at a time with ZeRO stage 3."""
    zero_hpz_partition_size: Annotated[
        int,
        Knob(
            help="ZeRO++: ranks of the group that backward gathers from; 1 turns it off.",
            within=_STAGE_3,
            lightest="min",
            exports={"deepspeed": Key("zero_hpz_partition_size")},
            values_text="one node: 1 and proper divisors of a world of 4 or more; several nodes: divisors of GPUs per node",
            upstream="`zero_hpz_partition_size` (ZeRO++)",
        ),
    ] = Field(default=1, ge=1)
    """Number of ranks in the secondary shard group of ZeRO++ (hpZ), within which backward gathers parameters. 1 turns
    it off."""
    offload_optimizer: Annotated[
        Offload | None,
        Knob(
            help="DeepSpeed: where optimizer state lives instead of the GPU.",
            words=("none", "cpu"),
            tries=("none", "cpu"),
            places_states=True,
            exports={"deepspeed": Written("`offload_optimizer.device`")},
            when_text="always. On CPU ranks it saves no memory, but steps with DeepSpeed's CPU Adam",
            upstream="`offload_optimizer.device`",
            parts={
                "ratio": Knob(
                    help="ZeRO-3: fraction of the optimizer state that is offloaded.",
                    minimum=0.01,
                    within={"offload_optimizer": ("cpu",)},
                    tries=(0.25, 0.5, 0.75, 1.0),
                    accepts_own_values=True,
                    lightest="max",
                    exports={"deepspeed": Written("`offload_optimizer.ratio`")},
                    # DeepSpeed 0.19.8 does not save the moments of the part on the GPU (`backup_optimizer`, which
                    # `_rigid_state_dict` leaves out): a winner with a fraction would fail its resume check.
                    when=When(is_named=True),
                    when_text="where you name it: a fraction below 1 cannot resume (DeepSpeed 0.19.8). Stage 3, optimizer on "
                    "the CPU, GPUs, and `sub_group_size` small enough for two sub-groups: whole ones are moved",
                    upstream="`offload_optimizer.ratio`",
                ),
                "pin_memory": replace(
                    PIN,
                    help=f"DeepSpeed: {PINNED}.",
                    within={"offload_optimizer": ("cpu",)},
                    exports={"deepspeed": Written("`offload_optimizer.pin_memory`")},
                    upstream="`offload_optimizer.pin_memory`",
                ),
            },
        ),
    ] = None
    offload_param: Annotated[
        Offload | None,
        Knob(
            help="ZeRO-3: where parameters live instead of the GPU.",
            words=("none", "cpu"),
            tries=("none", "cpu"),
            within=_STAGE_3,
            places_states=True,
            exports={"deepspeed": Written("`offload_param.device`")},
            when_text="stage 3 on GPUs (on CPU ranks only if the knob is limited)",
            upstream="`offload_param.device`",
            parts={
                "pin_memory": replace(
                    PIN,
                    help=f"ZeRO-3: {PINNED}.",
                    within={"offload_param": ("cpu",)},
                    exports={"deepspeed": Written("`offload_param.pin_memory`")},
                    upstream="`offload_param.pin_memory`",
                ),
            },
        ),
    ] = None
    """Settings with which parameters are offloaded to the host, only for ZeRO stage 3; null if they are not
    offloaded."""
    deepcompile: Annotated[
        bool,
        Knob(
            help="DeepSpeed: the whole model is compiled with its gathers and reductions in the graph (`compile.deepcompile`).",
            name="DeepCompile",
            tries=(False, True),
            when=When(
                on_gpu=True, is_named=True, others={"compile": (False,), "context_parallel": (1,), "loss": ("full",)}
            ),
            lightest=False,
            without_term="what its passes move and free is decided by profiles of the graph on the machine",
            exports={
                "deepspeed": Written("`compile.deepcompile`"),
                "lightning": Lost("never calls the engine's `compile`"),
            },
            when_text="GPUs without `compile`, if the knob is limited: the operator is built on the machine (`nvcc`)",
            upstream="`compile.deepcompile`, and the engine's `compile()`",
        ),
    ] = False
    """Whether DeepSpeed compiles the whole model (DeepCompile), so that the graph contains gathers of parameters and
    reductions of gradients. Only on GPUs. DeepSpeed builds the operator that this needs when it is first used."""
