"""Candidates: many configurations as one structure of arrays, the input of the memory and speed models.

Trial configurations and published measurements both become `Candidates`, so that the same formulas apply to both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.base import DTYPE_BYTES
from shardtune.api_schemas.training.optimizers import AdamW, OptimizerSchema
from shardtune.api_schemas.training.workload import Precision, Workload

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Backend codes. SINGLE is a plain model on one device.
SINGLE, DDP, ZERO, FSDP1, FSDP2 = range(5)
NONE, SELECTIVE, FULL = range(3)
ALL_PRODUCTS, SECOND_PRODUCTS, ATTENTION_ALONE = range(3)
MIB = 1 << 20
_ADAMW = AdamW()


@dataclass(frozen=True)
class Dtypes:
    """Bytes per element of parameters, gradients and other values, from the workload's precision."""

    master: int = 4
    compute: int = 2
    reduce: int = 4
    moments: float = 8.0
    """Bytes of optimizer state per trainable parameter: Adam's two moments. `tuner.prediction.optimizers.with_states`
    replaces them by the bytes of another optimizer's states."""
    linear_bits: int = 16
    """Number of bits of the operands of matrix products (8 for fp8), by which the peak rate of the products is chosen."""
    scales_loss: bool = False
    """Whether gradients are unscaled after backward, as training in float16 needs; it costs one more pass over the
    gradients."""

    @classmethod
    def of(cls, precision: Precision) -> "Dtypes":
        """Dtypes of the values of a training with this precision; Adam's two moments have the dtype of the master
        weights."""
        master = DTYPE_BYTES[precision.master_dtype]
        compute = DTYPE_BYTES[precision.compute_dtype]
        return cls(
            master=master,
            compute=compute,
            reduce=DTYPE_BYTES[precision.reduce_dtype],
            moments=2.0 * master,
            linear_bits=8 * compute,
            scales_loss=precision.scales_loss,
        )

    def under(self, impl: "Implementation") -> "Dtypes":
        """Dtypes in which a backend stores and sends values in this training program; under autocast the weights remain
        in the dtype of the masters."""
        return replace(self, compute=self.master) if impl.autocast else self


@dataclass(frozen=True)
class Implementation:
    """Facts about a training program that its configuration does not show, each of which changes memory or speed."""

    attention: Literal["flash", "fused", "eager"] = "flash"
    """Name of the attention kernel. `flash` saves q, k, v, output and one fp32 per head and token; `eager` saves the
    score matrices; so does `fused`, which scales, masks and takes the softmax in one kernel (Megatron's)."""
    selective: Literal["matmuls", "second_matmuls", "alternate_blocks", "attention"] = "matmuls"
    """Set of tensors that selective checkpointing keeps: outputs of all matrix products and attention, or the candidate's
    choice of them (`matmuls`, Shardtune); of every second product and attention (`second_matmuls`, torchtitan's `op`);
    all of every second block (`alternate_blocks`); all but the attention scores (`attention`, Megatron)."""
    autocast: bool = False
    """Whether mixed precision uses `torch.autocast`: weights and residual stream stay in the masters' dtype, and copies
    of weights and of linear layers' inputs are cast to the compute dtype."""
    fp32_logit_copies: float = 3.0
    """Number of fp32 values per logit that exist when the loss is computed: log-softmax, its gradient, and the loss's
    gradient."""
    keeps_logits: bool = True
    """Whether the program keeps the output head's logits through backward; Shardtune's own training program keeps only
    the loss."""
    loss_chunks: int = 1
    """Number of slices of the sequence over which the loss is computed; only one slice at a time has fp32 values."""
    optimizer: OptimizerSchema = _ADAMW
    """Optimizer of the program, which decides how many values it keeps and what a step costs."""
    fused_optimizer: bool = False
    """Whether the AdamW kernel is fused: torch's foreach AdamW keeps one temporary of the shard's size, a fused kernel
    none."""
    optimizer_in_backward: bool = False
    trainable: float = 1.0
    """Fraction of parameters with gradients and optimizer state; the remaining parameters are frozen."""
    dropout: float = 0.0
    offload_activations: bool = False
    language_head: bool = True
    """Whether the model has an output head over the vocabulary; False for a classifier, which has no logits over it."""
    kept_caches: int = 0
    """Number of passes whose key-value caches are kept in the program's outputs: transformers returns one cache unless
    `use_cache` is off, and a loop that keeps `outputs` over the next forward has two."""
    attention_rate: float = 1.0
    """Rate of the attention kernel relative to FlashAttention-2."""
    main_gradients: bool = False
    """Whether DDP and ZeRO-1 keep weights in the compute dtype beside fp32 masters and one whole buffer of gradients in
    the dtype of reduction. Each micro batch adds to the buffer, and the buffer is sent once a step: bucket by bucket
    under DDP, parameter by parameter under ZeRO-1 (nanotron)."""
    spanning_exchange_s: float = 0.0
    """Host seconds that each tensor rank adds to one tensor-parallel exchange, besides its launch, where pipeline
    stages are on different hosts."""
    stages_by_cost: bool = False
    """Whether blocks are divided among pipeline stages so that each stage has about as many parameters, the output
    head's included; otherwise all stages have the same number of blocks."""
    splits_positions: bool = True
    """Whether tensor-parallel ranks split norms and the residual stream by positions (sequence parallel); otherwise each
    rank holds both for all positions."""
    regathers_inputs: bool = False
    """Whether the inputs of linear layers split by tensor parallelism are gathered again for backward; otherwise each
    rank keeps them for all positions."""
    splits_logits: bool = True
    """Whether tensor-parallel ranks compute the loss over their part of the vocabulary; otherwise each has all logits."""
    masked_rows: int = 0
    """Number of rows of a micro batch from which on fused attention gets a mask (of padding or of packed samples); 0
    means that it never gets a mask."""
    step_host_s: float = 0.0
    """Host seconds of a step during which nothing else happens, in addition to `Rates.optimizer_host_s`."""

    @classmethod
    def of(cls, workload: Workload) -> "Implementation":
        """Facts about Shardtune's own training program (workers/rank): fused AdamW, no dropout, only the loss is
        kept."""
        attention: Literal["flash", "eager"] = "eager" if workload.attention == "eager" else "flash"
        return cls(
            attention=attention,
            autocast=workload.precision.autocast,
            optimizer=workload.optimizer,
            fused_optimizer=True,
            keeps_logits=False,
            masked_rows=_masked_rows(workload),
        )


def _masked_rows(workload: Workload) -> int:
    # FlashAttention-2 takes padding out of the rows instead.
    if workload.data is None or workload.attention != "sdpa":
        return 0
    if workload.data.is_packed:
        return 1
    return 1 if workload.data.pad_to_multiple_of > 1 else 2 if len(workload.data.lengths) > 1 else 0


@dataclass(frozen=True)
class Candidates:
    """Many configurations as arrays of one length n (or broadcastable to it), one entry per configuration."""

    backend: Array
    stage: Array
    shard: Array
    """Number of ranks that share one copy of the states that the backend shards."""
    replicate: Array
    sequence: Array
    micro_batch: Array
    context: Array
    """Number of ranks that share samples, each with a part of the sequence (context parallel)."""
    tensor: Array
    """Number of ranks that split each block (tensor parallel): parameters, and activations by heads and widths or,
    between blocks, by positions."""
    stages: Array
    """Number of pipeline ranks, each with some of the blocks."""
    schedule: Array
    """Index in `pipeline_schedules.SCHEDULES` of the schedule, the order in which pipeline ranks process micro
    batches."""
    virtual: Array
    """Number of pipeline stages on each pipeline rank."""
    experts: Array
    """Number of ranks that divide each block's experts, among the ranks that share one copy."""
    accumulation: Array
    checkpointing: Array
    checkpoint_every: Array
    selective_keeps: Array
    """Results that selective checkpointing keeps in Shardtune's own training program: of all matrix products and attention
    (0), of every second matrix product and attention (1), or of attention alone (2)."""
    activation_offload: Array
    """Whether the inputs of checkpointed blocks are in host memory from forward to backward."""
    mlp_slices: Array
    """Number of slices of the tokens over which each block's MLP is computed; 1 means all tokens at once."""
    loss_chunk: Array
    """Number of tokens whose logits a rank holds at once; 0 means all tokens of a micro batch."""
    loss_compiled: Array
    """Whether the loss of each chunk of tokens is compiled."""
    compiled: Array
    activation_budget: Array
    """Part of the activations beyond its input that a compiled block keeps for backward, as a fraction of what it keeps
    by default; 1 for blocks that are not compiled."""
    regather: Array
    """Number of ranks over which FSDP's parameters are sharded between forward and backward (`reshard_after_forward`).
    If it equals `shard`, most memory is freed; 1 means that each rank keeps whole parameters."""
    float8_gather: Array
    """Whether FSDP2 gathers the weights of the blocks' linear layers in float8, with one byte for each element."""
    backward_prefetch: Array
    blocks_per_unit: Array
    sync_last: Array
    """Whether gradients accumulate unsharded on each rank until the last micro batch of the step."""
    sync_shard_only: Array
    """Whether HSDP reduces gradients within the shard group at every micro batch, and across the groups only once per
    step."""
    offload_optimizer: Array
    """Fraction of optimizer state (and master weights) that is offloaded from the device."""
    offload_parameters: Array
    pinned_optimizer: Array
    """Whether optimizer state in host memory is page-locked; each backend page-locks only some of it."""
    pinned_parameters: Array
    ddp_bucket: Array
    """Bytes of a DDP gradient bucket."""
    bucket_view: Array
    reduce_bucket: Array
    """Number of elements of ZeRO's reduce bucket (DeepSpeed gives ZeRO's sizes in elements, not bytes)."""
    gather_bucket: Array
    double_buffer: Array
    contiguous: Array
    prefetch_bucket: Array
    persistence: Array
    """Largest size, in elements, of a parameter that ZeRO-3 always keeps gathered on every rank."""
    reuse: Array
    """Largest reuse distance at which ZeRO-3 keeps a parameter gathered: the number of parameter elements that are used
    between two uses of this parameter."""
    max_live: Array
    sub_group: Array
    """Number of elements that ZeRO-3's optimizer updates at a time."""
    secondary: Array
    """Number of ranks in a ZeRO++ hpZ group (secondary partition); 1 is off."""
    keeps_freed: Array
    """Whether the allocator keeps freed memory, as GPU allocators do; otherwise it returns the memory to the system."""

    @property
    def size(self) -> int:
        """Number of configurations in these candidates."""
        return int(np.broadcast(*(getattr(self, f.name) for f in fields(self))).size)

    @property
    def ranks(self) -> Array:
        """Number of ranks over which the model states of one stage are sharded or replicated."""
        return self.holders * self.replicate

    @cached_property
    def holders(self) -> Array:
        """Number of ranks that together hold one copy of the model states: sharding ranks times tensor-parallel ranks."""
        return self.shard * self.tensor

    @cached_property
    def tokens(self) -> Array:
        """Number of tokens of one micro batch on a rank; where ranks share samples, each rank counts only its own part
        of the tokens."""
        return self.sequence * self.micro_batch / (self.context * self.tensor)

    @property
    def loss_chunks(self) -> Array:
        """Number of chunks in which a rank computes the loss of a micro batch; 1 where it has all logits at once."""
        whole = self.loss_chunk == 0
        # Ranks that split the model each compute the loss of all their common tokens, over a part of the vocabulary.
        chunks = np.ceil(self.tokens * self.tensor / np.where(whole, 1.0, self.loss_chunk))
        return np.where(whole, 1.0, np.maximum(chunks, 1.0))

    def checkpointed(self, blocks: int) -> Array:
        """Number of blocks with activation checkpointing among the first `blocks` blocks."""
        return np.where(self.checkpointing == NONE, 0.0, np.floor(blocks / self.checkpoint_every))

    def with_values(self, **values: Any) -> "Candidates":
        """Copy of the candidates with some fields replaced by arrays or numbers."""
        return replace(self, **{name: np.asarray(value, dtype=float) for name, value in values.items()})

    def take(self, index: NDArray[np.intp]) -> "Candidates":
        """Candidates that contain only the configurations at these positions."""
        return Candidates(**{f.name: _at(getattr(self, f.name), index) for f in fields(self)})


def _at(values: Array, index: NDArray[np.intp]) -> Array:
    return values[index] if values.ndim and values.size > 1 else values


# The documented defaults of torch and DeepSpeed.
_DEFAULTS: dict[str, float] = {
    "backend": SINGLE, "stage": 0, "shard": 1, "replicate": 1, "sequence": 1, "micro_batch": 1, "context": 1, "tensor": 1,
    "stages": 1, "schedule": 0, "virtual": 1, "experts": 1, "accumulation": 1,
    "checkpointing": NONE, "checkpoint_every": 1, "selective_keeps": ALL_PRODUCTS, "activation_offload": 0, "mlp_slices": 1, "loss_chunk": 0, "loss_compiled": 0, "compiled": 0, "activation_budget": 1, "regather": 1, "float8_gather": 0, "backward_prefetch": 1,
    "blocks_per_unit": 1, "sync_last": 0, "sync_shard_only": 0, "offload_optimizer": 0, "offload_parameters": 0,
    "pinned_optimizer": 0, "pinned_parameters": 0,
    "ddp_bucket": 25 * MIB, "bucket_view": 0, "reduce_bucket": 5e8, "gather_bucket": 5e8, "double_buffer": 1,
    "contiguous": 1, "prefetch_bucket": 5e7, "persistence": 1e5, "reuse": 1e9, "max_live": 1e9, "sub_group": 1e9, "secondary": 1,
    "keeps_freed": 1,
}  # fmt: skip


def from_rows(rows: Sequence[dict[str, float]]) -> Candidates:
    """Build candidates from one mapping of fields per configuration; missing fields take the backend's documented
    default."""
    named = {name for row in rows for name in row}
    unknown = named - set(_DEFAULTS)
    assert not unknown, unknown
    return Candidates(
        **{
            name: np.array([row.get(name, default) for row in rows], dtype=float)
            if name in named
            else np.full(len(rows), default, dtype=float)
            for name, default in _DEFAULTS.items()
        }
    )
