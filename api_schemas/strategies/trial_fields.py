"""Fields of a training configuration: its strategy, and the settings common to all strategies with their knobs."""

from typing import Annotated, Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.knobs import Knob, Unexportable, When, Written
from shardtune.api_schemas.protocol import Since
from shardtune.api_schemas.strategies.base import Checkpointing
from shardtune.api_schemas.strategies.ddp import DdpConfig
from shardtune.api_schemas.strategies.fields.activation_offload import ACTIVATION_OFFLOAD
from shardtune.api_schemas.strategies.fields.common_knobs import IN_ENVIRONMENT, NO_SETTING
from shardtune.api_schemas.strategies.fields.memory_budget import ACTIVATION_MEMORY_BUDGET
from shardtune.api_schemas.strategies.fields.mlp_slices import MLP_SLICES
from shardtune.api_schemas.strategies.fields.selective_keeps import SELECTIVE_KEEPS, SelectiveKeeps
from shardtune.api_schemas.strategies.fsdp1 import Fsdp1Config
from shardtune.api_schemas.strategies.fsdp2 import Fsdp2Config
from shardtune.api_schemas.strategies.zero import ZeroConfig

NumaBinding = Literal["none", "node", "exclusive"]
Strategy = Annotated[DdpConfig | ZeroConfig | Fsdp1Config | Fsdp2Config, Field(discriminator="kind")]

_CHECKPOINTED = {"activation_checkpointing": ("selective", "full")}
_NOT_SHARED = Unexportable("counts every rank as a data-parallel one")
_IN_YOUR_MODULE = Written("a note: apply it in your module")


class TrialFields(Schema):
    """Training configuration without the settings of the loss: its strategy, and the settings that every strategy
    has."""

    strategy: Strategy
    micro_batch: Annotated[
        int,
        Knob(
            help="Samples one rank takes at once; gradients are accumulated up to the global batch.",
            grows_memory=True,
            exports={
                "script": Written("`MICRO_BATCH`"),
                "deepspeed": Written("`train_micro_batch_size_per_gpu`"),
                "accelerate": Written("a note: your data loader's batch size"),
                "training_arguments": Written("`per_device_train_batch_size`"),
                "torchtitan": Written("`local_batch_size`"),
                "lightning": Written("a note: your data loader's batch size"),
            },
            values_text="all divisors of global batch / world (of global batch × `context_parallel` × `tensor_parallel` × "
            "`pipeline_parallel` / world, and accumulation at least `pipeline_parallel`)",
            upstream="DeepSpeed `train_micro_batch_size_per_gpu`; the batch of one forward pass elsewhere",
        ),
    ] = Field(default=1, ge=1)
    """Number of samples per forward pass on each rank. Ranks that share samples (in tensor, context or pipeline
    parallelism) process the same ones."""
    context_parallel: Annotated[
        int,
        Knob(
            help="Adjacent ranks that share samples: each processes a part of every sequence, and attention exchanges "
            "positions for heads (Ulysses).",
            name="context parallel",
            when=When(is_named=True),
            places_states=True,
            exports={
                "script": Written("`share_attention`"),
                "accelerate": Written("a note to your script"),
                "training_arguments": _NOT_SHARED,
                "torchtitan": Written("`context_parallel_degree`"),
                "lightning": _NOT_SHARED,
            },
            values_text="1 and each divisor of world that divides the sequence and the heads (of queries and keys). The other "
            "ranks divide the global batch",
            when_text='the knob is limited, as `"context_parallel": [1, 2]`; not compiled, not with your own code '
            "([context parallel](../explanation/parallelism.md))",
            upstream="DeepSpeed-Ulysses; torchtitan's `context_parallel_degree` by another attention",
        ),
    ] = Field(default=1, ge=1, le=4096)
    """Number of adjacent ranks that share each sample. Each rank processes an equal part of the sequence; for
    attention, the ranks exchange parts of sequences for attention heads (Ulysses). A larger value fits longer
    sequences, and adds four exchanges per block in forward and four in backward."""
    activation_checkpointing: Annotated[
        Checkpointing,
        Knob(
            help="Activations that are recomputed in backward instead of kept: none, some (selective) or all (full).",
            name="checkpointing",
            tries=("none", "selective", "full"),
            memory_order=("full", "selective", "none"),
            exports={
                "script": Written("`checkpointed`"),
                "accelerate": Written("`fsdp_activation_checkpointing`, or a line of your script"),
                "training_arguments": Written("`activation_checkpointing`: `full` of every block, else lost"),
                "torchtitan": Written("`activation_checkpoint.mode`"),
                "lightning": _IN_YOUR_MODULE,
            },
            values_text="`none`, `full`; `selective` except at ZeRO stage 3: gathers within a block differ in recomputation, so "
            "a baseline with both is rejected",
            upstream="`torch.utils.checkpoint` on each block; `selective` has the policy of `selective_keeps`",
        ),
    ] = "none"
    checkpoint_every: Annotated[
        int,
        Knob(
            help="Checkpoint every n-th of the repeated blocks; 1: all of them.",
            name="checkpointing, every",
            when=When(others=_CHECKPOINTED),
            lightest="min",
            grows_memory=True,
            exports={
                "script": Written("the loop over `BLOCKS`"),
                "accelerate": Written("a line of your script"),
                "training_arguments": Written(
                    "`every_n_layers` under DDP and ZeRO without offload; else lost unless 1"
                ),
                "torchtitan": Written("a policy in the file that counts blocks, with `full`"),
                "lightning": _IN_YOUR_MODULE,
            },
            values_text="1 (each block), 2, 3, 4, up to the number of blocks",
            when_text="`activation_checkpointing` is not `none`",
            upstream="every k-th block, counted from the first",
        ),
    ] = Field(default=1, ge=1)
    """Distance between checkpointed blocks: 1 means every block is checkpointed, 2 every second one, counted from the
    first. A larger value recomputes less in backward and uses more memory."""
    selective_keeps: Annotated[SelectiveKeeps, SELECTIVE_KEEPS, Since(2)] = "products"
    """Results that selective checkpointing keeps from forward to backward. `products`: of all matrix products and
    attention. `second_products`: of attention, and of the first, the third, and every further second matrix product of
    a block. `attention`: of attention alone. Backward computes the rest again, so keeping fewer results needs less memory
    and more time."""
    activation_offload: Annotated[bool, ACTIVATION_OFFLOAD, Since(2)] = False
    """Whether the inputs of fully checkpointed blocks are moved to host memory between forward and backward. It frees
    layers × tokens × width values on the device. It needs as much host memory, and two copies over the bus per micro
    batch."""
    mlp_slices: Annotated[int, MLP_SLICES, Since(2)] = Field(default=1, ge=1, le=1024)
    """Number of slices into which a micro batch's tokens are cut for the MLP of each block; 1 means that it is not cut.
    Activations inside the MLP exist for one slice at a time, so more slices need less memory. Backward computes the
    MLP's forward again, unless the block is recomputed anyway."""
    compile: Annotated[
        bool,
        Knob(
            help="Each repeated block is compiled (`torch.compile`).",
            tries=(False, True),
            lightest=False,
            exports={
                "script": Written("`block.compile()`"),
                "accelerate": Written("a line of your script"),
                "training_arguments": Written("`torch_compile`, of the whole model"),
                "torchtitan": Written("`compile.enable`"),
                "lightning": _IN_YOUR_MODULE,
            },
            when_text="GPUs, unless `space.allow_compile` is `false`; elsewhere where it is `true`, or the knob is limited to "
            "`true`",
            upstream="`torch.compile` of each block",
        ),
    ] = False
    """Whether to apply `torch.compile` to each repeated block."""
    activation_memory_budget: Annotated[float, ACTIVATION_MEMORY_BUDGET, Since(2)] = Field(default=1.0, ge=0.05, le=1)
    """Part of the activations beyond its input that a compiled block keeps for backward, as a fraction of what the
    compiler keeps by default; 1 is that default. Backward recomputes the rest, the cheapest operators first. A smaller
    value needs less memory and more time. Below 1, blocks must be compiled and not checkpointed."""
    malloc: Annotated[
        Literal["default", "keep"],
        Knob(
            help="Whether freed host memory stays with the process, or goes back by glibc's rules.",
            name="freed host memory",
            value_names={"keep": "kept by the process", "default": "returned to the system"},
            phrases={"keep": "freed memory kept"},
            tries=("default", "keep"),
            when=When(on_gpu=False, or_named=True),
            lightest="default",
            exports=IN_ENVIRONMENT,
            upstream="glibc's `MALLOC_MMAP_THRESHOLD_` and `MALLOC_TRIM_THRESHOLD_` (mallopt): freed memory stays with the "
            "process",
        ),
    ] = "default"
    """Treatment of freed host memory: glibc returns it by its default rules, or the process keeps it. Keeping it avoids
    page faults and uses more memory."""
    threads: Annotated[
        int,
        Knob(
            help="Threads of a rank (`OMP_NUM_THREADS`); 0: the node's cores divided by its ranks.",
            name="threads",
            value_names={"0": "cores divided by ranks"},
            phrases={"1": "1 thread a rank", "*": "{value} threads a rank"},
            accepts_own_values=True,
            lightest=0,
            without_term="rates are measured with a rank's share of the cores",
            exports=IN_ENVIRONMENT,
            values_text="0 (`OMP_NUM_THREADS` of the worker, else the cores of the node by its ranks), half of that share; your "
            "own numbers in their place",
            when_text="CPU ranks with two cores or more each, or the knob is limited",
            upstream="`OMP_NUM_THREADS`, `torch.set_num_threads`",
        ),
    ] = Field(default=0, ge=0, le=1024)
    """Number of CPU threads of each rank. 0 means OMP_NUM_THREADS if the worker sets it, otherwise the node's cores
    divided by its ranks."""
    expandable_segments: Annotated[
        bool,
        Knob(
            help="The CUDA allocator grows its segments (`PYTORCH_ALLOC_CONF=expandable_segments:True`).",
            phrases={"true": "expandable segments"},
            tries=(False, True),
            when=When(on_gpu=True),
            accepts_own_values=True,
            lightest=False,
            without_term="what the allocator reserves beyond what is allocated is learned from measurements of either kind",
            exports=IN_ENVIRONMENT,
            upstream="`PYTORCH_ALLOC_CONF=expandable_segments:True`",
        ),
    ] = False
    """Whether the CUDA allocator grows the memory segments that it has instead of adding new ones. Memory fragments
    less, and the first steps are slower."""
    max_connections: Annotated[
        int,
        Knob(
            help="Hardware queues of a GPU (`CUDA_DEVICE_MAX_CONNECTIONS`); 0: the driver's default.",
            name="device connections",
            value_names={"0": "the driver's default"},
            phrases={"*": "device connections {value}"},
            tries=(0,),
            when=When(on_gpu=True),
            accepts_own_values=True,
            lightest=0,
            without_term="the order of kernels and collectives in the device's queues is not modelled",
            variable="CUDA_DEVICE_MAX_CONNECTIONS",
            values_text="0 (the driver's own, 8); your own numbers up to 32",
            when_text="GPUs, if the knob is limited",
            upstream="`CUDA_DEVICE_MAX_CONNECTIONS`",
        ),
    ] = Field(default=0, ge=0, le=32)
    """Number of hardware queues of a GPU (CUDA_DEVICE_MAX_CONNECTIONS), which affects the order of kernels and
    collectives. 0 means the driver's default, which is 8."""
    numa_binding: Annotated[
        NumaBinding,
        Knob(
            help="Cores of a rank: any, those near its GPU (node), or an exclusive part of these (`torchrun --numa-binding`).",
            name="NUMA binding",
            phrases={"node": "kept to its GPU's NUMA node", "exclusive": "kept to cores of its own"},
            tries=("none", "node", "exclusive"),
            when=When(on_gpu=True, is_named=True),
            lightest="none",
            without_term="how far a rank's cores are from its memory and its GPU is not modelled",
            exports={
                "script": Written("`torchrun --numa-binding`"),
                "accelerate": Written("`enable_cpu_affinity` for `node`, else a note"),
                "training_arguments": Written("a note: start it by `torchrun --numa-binding`"),
                "torchtitan": Written("a note: start it by `torchrun --numa-binding`"),
                "lightning": Written("a note: start it by `torchrun --numa-binding`"),
            },
            upstream="torchrun's `--numa-binding`: any core, the cores of the GPU's NUMA node, or a part of these for each "
            "rank; needs `numactl`",
        ),
    ] = "none"
    """CPU cores to which the rank of each GPU is bound. `none`: any core of the worker; `node`: the cores of the GPU's
    NUMA node; `exclusive`: a part of those cores for each rank (torchrun's `--numa-binding`). Binding keeps host memory
    near; a rank that needs more cores must wait for them."""
    gc_every: Annotated[
        int,
        Knob(
            help="Steps between collections of Python's garbage; 0: Python collects whenever it wants, on each rank at "
            "another time.",
            name="garbage collection",
            value_names={"0": "left to Python"},
            phrases={"*": "garbage collected every {value} steps"},
            tries=(0, 50),
            when=When(is_named=True),
            accepts_own_values=True,
            lightest=0,
            without_term="how often Python collects by itself depends on the objects that a step makes",
            exports={
                "script": Written("`gc.disable()`, and `gc.collect(1)` after the steps"),
                "accelerate": NO_SETTING,
                "training_arguments": NO_SETTING,
                "torchtitan": Written("`training.gc_freq`; 0 is lost: torchtitan always collects by steps"),
                "lightning": NO_SETTING,
            },
            upstream="torchtitan's `gc_freq`, Megatron's `--manual-gc-interval`",
        ),
    ] = Field(default=0, ge=0, le=10_000)
    """Number of optimizer steps after which all ranks collect Python's garbage, at the same step. 0 means that Python
    collects on each rank at its own times, while the other ranks wait. With a larger value, ranks wait less often and
    garbage is kept longer."""
