"""Fields of FSDP2's configuration that divide the ranks: the axes of the device mesh, pipeline stages and experts."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from shardtune.api_schemas.knobs import Key, Knob, Lost, Unexportable, When, Written
from shardtune.api_schemas.strategies.base import StrategySchema
from shardtune.api_schemas.strategies.fields.common_knobs import DP_REPLICATE, DP_SHARD
from shardtune.api_schemas.strategies.pipeline_schedules import PipelineSchedule

_NAMED = When(is_named=True)
_ONE_AXIS = Unexportable("has data-parallel ranks only")


class Fsdp2Axes(StrategySchema):
    """Sizes of the groups of ranks over which FSDP2 replicates, shards and splits the model."""

    kind: Literal["fsdp2"] = "fsdp2"
    dp_replicate: Annotated[
        int,
        replace(
            DP_REPLICATE,
            exports={
                "script": Written("`init_device_mesh`"),
                "accelerate": Written("`parallelism_config_dp_replicate_size`"),
                "training_arguments": Written("a note: `ParallelismConfig`"),
                "torchtitan": Key("data_parallel_replicate_degree"),
                "lightning": Lost("has one data-parallel axis, over which all ranks shard"),
            },
            values_text="world / (`dp_shard` × `tensor_parallel` × `pipeline_parallel`): limits on either hold for both",
            when_text="follows",
            upstream="`mesh`, axis `dp_replicate`",
        ),
    ] = Field(default=1, ge=1)
    """Number of replicas of the sharded model. Gradients are all-reduced between them."""
    dp_shard: Annotated[
        int,
        replace(
            DP_SHARD,
            exports={
                "script": Written("`init_device_mesh`"),
                "accelerate": Written("`parallelism_config_dp_shard_size`"),
                "training_arguments": Written("a note: `ParallelismConfig`"),
                "torchtitan": Key("data_parallel_shard_degree"),
                "lightning": Written("`ModelParallelStrategy(data_parallel_size=…)`: all ranks"),
            },
            values_text="all divisors of world / (`tensor_parallel` × `pipeline_parallel`); with `expert_parallel`, its "
            "multiples over which what a rank has of the experts comes out",
            upstream="`mesh`, axis `dp_shard`",
        ),
    ] = Field(ge=1)
    """Number of ranks over which parameters, gradients and optimizer state are sharded (the size of a shard group)."""
    tensor_parallel: Annotated[
        int,
        Knob(
            help="Adjacent ranks that split every block: each computes a part of its heads and hidden units, and between "
            "blocks a part of every sequence.",
            name="tensor parallel",
            when=_NAMED,
            places_states=True,
            exports={
                "script": Written("`parallelize_module`"),
                "accelerate": Written("a note to your script"),
                "training_arguments": _ONE_AXIS,
                "torchtitan": Written("`tensor_parallel_degree`"),
                "lightning": _ONE_AXIS,
            },
            values_text="1 and each divisor of world that divides GPUs per node (or that you name), the sequence, heads, "
            "heads of keys and split widths. Times `context_parallel` likewise",
            when_text='the knob is limited, as `"tensor_parallel": [1, 2]`; not compiled, and transformers has a plan for the '
            "model ([who can](../explanation/parallelism.md#tensor-parallel))",
            upstream="`parallelize_module` over the axis `tp`",
        ),
    ] = Field(default=1, ge=1, le=4096)
    """Number of adjacent ranks that split the model (tensor parallelism): heads and widths of each block, positions
    between blocks, and the vocabulary of output head and loss. With a larger value, each rank stores less of
    everything. Each block gathers and scatters activations twice in each pass."""
    pipeline_parallel: Annotated[
        int,
        Knob(
            help="Number of stages; each holds consecutive blocks on its own ranks, and the micro batches of a step pass "
            "through them.",
            name="pipeline parallel",
            when=_NAMED,
            places_states=True,
            exports={
                "script": Written("`PipelineStage`"),
                "accelerate": Written("a note to your script"),
                "training_arguments": _ONE_AXIS,
                "torchtitan": Written("`pipeline_parallel_degree`"),
                "lightning": _ONE_AXIS,
            },
            values_text="1 and each divisor of world up to the number of blocks that leaves each stage a micro batch",
            when_text='the knob is limited, as `"pipeline_parallel": [1, 2]`; not compiled, not for models whose blocks hand '
            "over more than hidden states ([who can](../explanation/parallelism.md#pipeline-parallel))",
            upstream="`PipelineStage` over the axis `pp`",
        ),
    ] = Field(default=1, ge=1, le=4096)
    """Number of pipeline stages, through which the micro batches of a step pass one after the other. With a larger
    value, each rank holds fewer blocks, and only hidden states are sent; but ranks are idle at the begin and end of a
    step."""
    pipeline_schedule: Annotated[
        PipelineSchedule,
        Knob(
            help="Order of a stage's work. 1F1B runs each backward as soon as possible, which keeps few micro batches in memory; "
            "GPipe runs all forwards first. Interleaved and V schedules have several stages per rank; zero bubble delays weight "
            "gradients.",
            name="pipeline schedule",
            value_names={
                "1f1b": "1F1B",
                "gpipe": "GPipe",
                "interleaved_1f1b": "interleaved 1F1B",
                "interleaved_zero_bubble": "interleaved zero bubble",
                "zbv_zero_bubble": "zero bubble in a V",
                "dual_pipe_v": "DualPipeV",
            },
            lightest="1f1b",
            memory_order=("1f1b", "gpipe"),
            exports={
                "script": Written("torch's class of the schedule"),
                "accelerate": Written("a note to your script"),
                "training_arguments": _ONE_AXIS,
                "torchtitan": Written("`pipeline_parallel_schedule`"),
                "lightning": _ONE_AXIS,
            },
            values_text="`1f1b`, `gpipe`. With two blocks for each rank and a fitting micro batch also `interleaved_1f1b`, "
            "`interleaved_zero_bubble`, `zbv_zero_bubble`, `dual_pipe_v`",
            when_text="`pipeline_parallel` above 1; the last three with `reshard_after_forward: false`, `grad_sync: "
            '"last"` and `none` or `full` checkpointing',
            upstream="`Schedule1F1B`, `ScheduleGPipe`, `ScheduleInterleaved1F1B`, `ScheduleInterleavedZeroBubble`, "
            "`ScheduleZBVZeroBubble`, `ScheduleDualPipeV`",
        ),
    ] = "1f1b"
    """Order in which a pipeline stage runs micro batches. `1f1b`: backward as early as possible, so that few are in
    memory; `gpipe`: all forward passes, then all backward passes; `interleaved_1f1b`: 1F1B with several smaller stages
    per rank. `interleaved_zero_bubble`, `zbv_zero_bubble` and `dual_pipe_v` compute the gradients of weights while a
    rank would otherwise wait. The latter two place two stages on each rank, so that the first rank has the first and
    the last stage."""
    pipeline_virtual_stages: Annotated[
        int,
        Knob(
            help="Stages on each rank of a pipeline: more of them shorten the bubble and send more often.",
            name="stages per rank",
            places_states=True,
            exports={
                "script": Written("`VIRTUAL`"),
                "accelerate": Written("a note to your script"),
                "training_arguments": _ONE_AXIS,
                "torchtitan": Written(
                    "`pipeline_parallel_layers_per_stage`, where a number of layers makes as many stages"
                ),
                "lightning": _ONE_AXIS,
            },
            values_text="numbers from 2 that spread the blocks evenly, else 2; in a V 2",
            when_text="schedules with several stages on a rank",
            upstream="a `PipelineStage` for each",
        ),
    ] = Field(default=1, ge=1, le=1024)
    """Number of pipeline stages on each rank: several with interleaved schedules, 2 with V-shaped ones. A larger value
    shortens the idle time at the begin and end of a step, keeps more micro batches in memory, and sends activations
    more often."""
    expert_parallel: Annotated[
        int,
        Knob(
            help="Adjacent ranks that divide the experts of each layer: tokens are sent to the ranks of their experts and back.",
            name="expert parallel",
            when=_NAMED,
            places_states=True,
            exports={
                "script": Written("`divide_experts`"),
                "accelerate": Written("a note to your script"),
                "training_arguments": _ONE_AXIS,
                "torchtitan": Written("`expert_parallel_degree`"),
                "lightning": _ONE_AXIS,
            },
            values_text="1 and each divisor of world / `pipeline_parallel` that divides the experts of a layer",
            when_text='the knob is limited, as `"expert_parallel": [1, 2]`; not compiled, not with `tensor_parallel`, not for '
            "models without experts ([who can](../explanation/parallelism.md#expert-parallel))",
            upstream="`fully_shard` of each layer's experts over the other ranks of `dp_shard`",
        ),
    ] = Field(default=1, ge=1, le=4096)
    """Number of adjacent ranks, within `dp_shard`, that divide the experts of each layer among them. With a larger
    value, a rank gathers, reduces and computes fewer experts. Tokens are sent to the ranks of their experts and back in
    each pass."""
