"""Fields of FSDP2's configuration: when units are gathered, reduced and kept, and where shards are."""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from shardtune.api_schemas.knobs import Call, Key, Knob, Lost, When, Written
from shardtune.api_schemas.protocol import Since
from shardtune.api_schemas.strategies.base import GradSync
from shardtune.api_schemas.strategies.fields.common_knobs import CPU_OFFLOAD, GRAD_SYNC, NO_SETTING, PINNED
from shardtune.api_schemas.strategies.fields.float8_gather import FLOAT8_GATHER
from shardtune.api_schemas.strategies.fields.fsdp2_axes import Fsdp2Axes

_GATHERS = When(on_gpu=True, above={"dp_shard": 1})


class Fsdp2Fields(Fsdp2Axes):
    """Settings of FSDP2: arguments of `fully_shard`, and calls of methods of an `FSDPModule`."""

    reshard_after_forward: Annotated[
        bool | int,
        Knob(
            help="FSDP2: whether gathered parameters are freed after forward; “kept after forward” is "
            "`reshard_after_forward=False`.",
            lightest=True,
            exports={
                "script": Key("reshard_after_forward"),
                "accelerate": Written("`fsdp_reshard_after_forward`: true or false"),
                "training_arguments": Written("`fsdp_config.reshard_after_forward`: true or false"),
                "torchtitan": Written("`fsdp_reshard_after_forward`: `always` or `never`"),
                "lightning": Written("`fully_shard(reshard_after_forward=…)`"),
            },
            values_text="`true`, `false`, each proper divisor of `dp_shard`",
        ),
    ] = True
    """Treatment of gathered parameters after the forward pass of an FSDP unit. If True, they are freed and gathered
    again in backward; if False, they are kept; an integer reshards them to groups of that many ranks."""
    forward_prefetch: Annotated[
        int,
        Knob(
            help="FSDP2: units gathered ahead in forward (`set_modules_to_forward_prefetch`).",
            when=_GATHERS,
            accepts_own_values=True,
            lightest="min",
            without_term="forward's gathers count as hidden already, and memory peaks in backward",
            exports={
                "script": Written("`set_modules_to_forward_prefetch`"),
                "accelerate": NO_SETTING,
                "training_arguments": NO_SETTING,
                "torchtitan": NO_SETTING,
                "lightning": Written("`set_modules_to_forward_prefetch`"),
            },
            values_text="0, 1, 2 units ahead, where there are that many",
            upstream="`set_modules_to_forward_prefetch`",
        ),
    ] = Field(default=0, ge=0, le=8)
    """Number of FSDP units that are gathered ahead in forward, in addition to the one that FSDP2 gathers ahead by
    itself."""
    backward_prefetch: Annotated[
        int,
        Knob(
            help="FSDP2: units gathered ahead in backward (`set_modules_to_backward_prefetch`).",
            when=_GATHERS,
            accepts_own_values=True,
            lightest="min",
            exports={
                "script": Written("`set_modules_to_backward_prefetch`"),
                "accelerate": NO_SETTING,
                "training_arguments": NO_SETTING,
                "torchtitan": NO_SETTING,
                "lightning": Written("`set_modules_to_backward_prefetch`"),
            },
            values_text="0, 1 (the default), 2",
            when_text="GPUs, `dp_shard` above 1, and `reshard_after_forward` is not `false`",
            upstream="`set_modules_to_backward_prefetch`",
        ),
    ] = Field(default=1, ge=0, le=8)
    """Number of FSDP units that are gathered ahead in backward; 1 is what FSDP2 does by default."""
    separate_reduce_scatter_group: Annotated[
        bool,
        Knob(
            help="FSDP2: gradients are reduced through a communicator of their own, beside that of the gathers.",
            name="own group for reduce-scatter",
            tries=(False, True),
            when=When(on_gpu=True, is_named=True, above={"dp_shard": 1}),
            lightest=False,
            without_term="how much two collectives on the same links slow each other down is not modelled",
            exports={
                "script": Call("set_separate_reduce_scatter_group"),
                "accelerate": NO_SETTING,
                "training_arguments": NO_SETTING,
                "torchtitan": NO_SETTING,
                "lightning": Call("set_separate_reduce_scatter_group"),
            },
            upstream="`FSDPModule.set_separate_reduce_scatter_group` (experimental; torch 2.13 or later)",
        ),
    ] = False
    """Whether FSDP2 reduces gradients through a process group of its own. A reduction and the gather of the next unit
    can then run at the same time in backward. The second communicator takes device memory."""
    float8_gather: Annotated[bool, FLOAT8_GATHER, Since(2)] = False
    """Whether FSDP2 gathers the weights of the blocks' linear layers in float8, with one byte for each element, instead of
    casting them after the gather. Scales of whole weights are computed after each optimizer step, in one all-reduce. It
    requires `workload.float8` `tensorwise`."""
    blocks_per_unit: Annotated[
        int,
        Knob(
            help="FSDP2: repeated blocks that are sharded, gathered and reduced together.",
            lightest="min",
            exports={
                "script": Written("one `fully_shard` call for several blocks"),
                "accelerate": Lost("shards each block as a unit"),
                "training_arguments": Lost("shards each block as a unit"),
                "torchtitan": Lost("shards each block as a unit"),
                "lightning": Written("one `fully_shard` call for several blocks"),
            },
            values_text="1, 2, 4, 8 up to the number of blocks",
            upstream="one `fully_shard` call for several modules",
        ),
    ] = Field(default=1, ge=1)
    """Number of repeated blocks that form one FSDP unit. A larger value gives fewer and larger collectives, and more
    memory is gathered at once."""
    cpu_offload: Annotated[
        bool,
        replace(
            CPU_OFFLOAD,
            exports={
                "script": Written("`CPUOffloadPolicy`"),
                "accelerate": Key("fsdp_offload_params"),
                "training_arguments": Written("`fsdp_config.cpu_offload`"),
                "torchtitan": Key("enable_cpu_offload"),
                "lightning": Written("`CPUOffloadPolicy`"),
            },
            when_text="GPUs: on CPU ranks shards are in host memory already",
            upstream="`CPUOffloadPolicy`",
        ),
    ] = False
    """Whether parameter shards, gradients and optimizer state are stored in host memory."""
    pin_memory: Annotated[
        bool,
        Knob(
            help=f"FSDP2: {PINNED}.",
            tries=(True, False),
            when=When(on_gpu=True),
            within={"cpu_offload": (True,)},
            accepts_own_values=True,
            lightest=False,
            exports={
                "script": Written("`CPUOffloadPolicy(pin_memory=…)`"),
                "accelerate": Lost("always pins"),
                "training_arguments": Lost("always pins"),
                "torchtitan": Lost("always pins"),
                "lightning": Written("`CPUOffloadPolicy(pin_memory=…)`"),
            },
            upstream="`CPUOffloadPolicy(pin_memory=…)`",
        ),
    ] = True
    """Whether offloaded shards are kept in page-locked host memory, which is copied faster. It has no effect without an
    accelerator."""
    grad_sync: Annotated[
        GradSync,
        replace(
            GRAD_SYNC,
            exports={
                "script": Written("`set_requires_gradient_sync`, `set_requires_all_reduce`"),
                "accelerate": Lost("reduces after the last micro batch unless your script says otherwise"),
                "training_arguments": Written("`sync_each_batch`; `reduce_scatter` is lost"),
                "torchtitan": Written("always after every micro batch, under a pipeline after the last"),
                "lightning": Written("always after the last micro batch"),
            },
            values_text="`every`, `last`; with both mesh axes above 1 also `reduce_scatter`",
            upstream="`FSDPModule.set_requires_gradient_sync`, `.set_requires_all_reduce`",
        ),
    ] = "every"
    """Time at which gradients are reduced during gradient accumulation. `every`: after each micro batch. `last`: after
    the last one, which keeps unsharded gradients in memory. `reduce_scatter`: gradients are scattered after each micro
    batch and all-reduced over the replicas after the last one (`set_requires_all_reduce`); it requires `dp_replicate`
    and `dp_shard` above 1."""
