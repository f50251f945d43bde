"""Activations: bytes that one decoder block and the loss keep for backward, by attention kernel and activation
checkpointing.

Counted tensor by tensor from the eager graph of transformers 5 (LlamaDecoderLayer, GPT2Block, MixtralDecoderLayer) and
checked against traces (docs/measurements/tracker.md); the method is that of Korthikanti et al. (arXiv:2205.05198, eq.
1-2).
"""

import numpy as np

from shardtune.tuner.prediction.adapters import magnitudes
from shardtune.tuner.prediction.backends import trained_fractions as trained_part
from shardtune.tuner.prediction.backends.host_allocator import allocated
from shardtune.tuner.prediction.candidates import (
    ALL_PRODUCTS,
    FULL,
    SECOND_PRODUCTS,
    SELECTIVE,
    Array,
    Candidates,
    Dtypes,
    Implementation,
)
from shardtune.tuner.prediction.footprint import kept_products, memory_budget, mlp_slices, traced_activations
from shardtune.tuner.prediction.footprint.block_bytes import BlockBytes
from shardtune.tuner.prediction.model_shape import ModelShape


def block_bytes(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation) -> BlockBytes:
    """Activation bytes of one block, for each candidate."""
    if shape.step_trace is not None:
        return traced_activations.block_bytes(shape.step_trace, c).with_offload(c, shape.layers)
    held = held_positions(c, impl)
    eager = _attention_bytes(shape, c, dtypes, impl) + c.tokens * (
        held * _norm_bytes(shape, dtypes, impl) + _mlp_bytes(shape, dtypes, impl)
    )
    if impl.splits_positions and not impl.regathers_inputs:
        # Where a block is split, the linear layers' inputs are gathered, and saved, for all positions.
        eager = eager + c.tokens * (c.tensor - 1.0) * (2.0 * dtypes.compute * shape.hidden)
    eager = eager + c.tokens * _added_bytes(shape, dtypes)
    fused = c.tokens * _compiled_bytes(shape, dtypes) + _attention_extra(shape, c, dtypes, impl)
    all_saved = mlp_slices.saved(shape, c, dtypes, impl, np.where(c.compiled > 0, np.minimum(fused, eager), eager))
    boundary = c.tokens * held * shape.hidden * (4 if impl.autocast else dtypes.compute)
    # Every product is kept, also those of weight lengths (DoRA), which no gradient needs.
    keeps_all = (impl.selective == "matmuls") & (c.selective_keeps == ALL_PRODUCTS)
    keeps_products = (c.checkpointing == SELECTIVE) & keeps_all
    products = keeps_products * magnitudes.kept_products(shape.adapter, dtypes.compute)
    selective = boundary + _selective_bytes(shape, c, dtypes, impl, all_saved - boundary) + products
    checkpointed = np.where(
        c.checkpointing == FULL, boundary, np.where(c.checkpointing == SELECTIVE, selective, all_saved)
    )
    unchecked = memory_budget.kept(c, boundary, all_saved)
    recomputed = all_saved - unchecked
    if impl.offload_activations:
        checkpointed, unchecked = checkpointed * 0.0, unchecked * 0.0
    # Tensors of the MLP's width alive at once in its backward, from traces; experts split one fused projection.
    mlp_tensors = 2 if shape.mlp != "gated" or shape.experts > 1 else 3
    width = mlp_tensors * shape.experts_per_token * shape.ffn + 2 * shape.hidden * c.tensor
    # Rows in transit to experts of other ranks and back exist besides those in work.
    width = width + np.where(c.experts > 1, 2.0 * shape.experts_per_token * shape.hidden, 0.0)
    flowing = mlp_slices.flowing(shape, c, dtypes, impl, c.tokens * dtypes.compute * width)
    flowing = flowing + _scores_bytes(shape, c, dtypes, impl)
    flowing = flowing + trained_part.unpacked_bytes(shape, dtypes)
    # Lengths are taken in forward, or in its repetition, when no gradient flows yet.
    of_weights = dtypes.master if impl.autocast else dtypes.compute
    temporary = magnitudes.largest_temporary(shape.adapter, dtypes.compute, of_weights, keeps_products)
    flowing = np.maximum(flowing, temporary)
    frozen = shape.layers - shape.trained_blocks
    block = BlockBytes(checkpointed, unchecked, all_saved, flowing, frozen, recomputed=recomputed)
    return block.with_offload(c, shape.layers)


def offloaded_inputs(
    shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, *, is_pinned: bool
) -> Array:
    """Bytes of the inputs of checkpointed blocks that one rank keeps in host memory for one micro batch. Page-locked
    tensors count with the size that torch's allocator rounds them up to."""
    if not np.any(c.activation_offload):
        # Most spaces have none, and an enumeration comes by here thousands of times.
        return c.tokens * 0.0
    block = block_bytes(shape, c, dtypes, impl)
    size = np.asarray(block.offloaded)
    return block.number_offloaded(c) * (allocated(size) if is_pinned else size)


def held_positions(c: Candidates, impl: Implementation) -> Array:
    """Number of positions that norms and the residual stream have on a rank, as a fraction of `Candidates.tokens`."""
    return np.ones_like(c.tensor) if impl.splits_positions else c.tensor


def _norm_bytes(shape: ModelShape, dtypes: Dtypes, impl: Implementation) -> float:
    """Activation bytes per token of a block's two norms, and of the inputs of the linear layers that follow them."""
    size = dtypes.compute
    stream = 4 if impl.autocast else size
    if shape.norm == "rms":
        # LlamaRMSNorm: the fp32 copy of the input (saved by pow and by the product with rsqrt) and the normalised value.
        # A frozen norm keeps no normalised value.
        one_norm = 4 * shape.hidden + (4 if impl.autocast else size) * shape.hidden * shape.saved.norms
    else:
        one_norm = stream * shape.hidden + 8
    linear_inputs = size * shape.hidden * (shape.saved.attention + shape.saved.mlp)
    return 2.0 * one_norm + linear_inputs


def _final_norm_bytes(shape: ModelShape, dtypes: Dtypes, impl: Implementation) -> float:
    """Activation bytes per token of the last norm, and of the output head's input."""
    if shape.adapter is None:
        return _norm_bytes(shape, dtypes, impl) / 2
    # Both are frozen: the norm keeps its input in fp32, the head nothing.
    return 4.0 * shape.hidden


def _added_bytes(shape: ModelShape, dtypes: Dtypes) -> float:
    """Activation bytes per token that LoRA's own matrices keep: the output of the first matrix of each pair."""
    if shape.adapter is None:
        return 0.0
    of_first = float(dtypes.compute * shape.adapter.rank * len(shape.adapter.matrices))
    return of_first + magnitudes.kept_bytes(shape.adapter, dtypes.compute)


def _mlp_bytes(shape: ModelShape, dtypes: Dtypes, impl: Implementation) -> float:
    """Activation bytes per token of the MLP from the output of its first linear layers on; the MLP's input is counted
    with the norm before it."""
    size, k = dtypes.compute, shape.experts_per_token
    total = k * mlp_slices.inner_bytes(shape, dtypes)
    if shape.experts > 1:
        # Tokens gathered per expert, expert outputs before the routing weight, router logits in fp32.
        total += size * k * (1 + shape.saved.mlp) * shape.hidden + 8 * shape.experts
    if impl.dropout > 0:
        total += 2 * shape.hidden  # two one-byte masks on the residual branches
    return total


def _attention_bytes(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation) -> Array:
    """Activation bytes of q, k, v, the attention output and the attention kernel's saved tensors."""
    size = dtypes.compute
    per_token = size * (2 * shape.query + 2 * shape.kv)
    if shape.qk_norm:
        per_token += (4 + size * shape.saved.norms) * (shape.query + shape.kv)
    if impl.attention == "eager":
        # repeat_kv materialises the keys and values of every query head.
        per_token += size * (2 * shape.query - 2 * shape.kv)
        if not shape.saved.output:
            # Fused attention keeps its output for its own backward.
            per_token -= size * shape.query
    # The output exists twice: as attention saved it for its heads, and as the projection did for its positions.
    exchanged = (c.context > 1) * float(size * shape.query)
    saved: Array = c.tokens * (per_token + exchanged)
    return saved + _attention_extra(shape, c, dtypes, impl)


def _attention_extra(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation) -> Array:
    """Bytes of one block's log-sum-exp values (flash attention) or score matrices (eager attention)."""
    size = dtypes.compute
    if impl.attention == "flash":
        # sdpa keeps a mask of padding in the dtype of q, and takes keys and values of every query head beside it.
        mask = c.tokens * (size * c.sequence + 2.0 * size * (shape.query - shape.kv))
        is_masked = (impl.masked_rows > 0) & (c.micro_batch >= impl.masked_rows)
        return c.tokens * (4.0 * shape.heads) + is_masked * mask
    if impl.attention == "fused":
        # The scores and their softmax, both in the dtype of the products.
        return c.tokens * c.sequence * (2.0 * size * shape.heads)
    # Softmax in fp32 and its cast for the product with v; with dropout a mask and the dropped copy.
    scores = 4.0 + (size if size < 4 else 0) if shape.norm == "rms" or impl.autocast else float(size)
    if impl.dropout > 0:
        scores += 1 + size
    return c.tokens * c.sequence * (scores * shape.heads)


def _scores_bytes(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation) -> Array:
    """Bytes of the gradients of the score matrices in the backward of eager attention."""
    if impl.attention == "flash":
        return c.tokens * 0.0
    return c.tokens * c.sequence * (2.0 * dtypes.compute * shape.heads)


def _compiled_bytes(shape: ModelShape, dtypes: Dtypes) -> float:
    """Activation bytes per token of a block under torch.compile: block and MLP inputs, norm outputs, q, k, v, attention
    output, MLP products."""
    # Casts, norms' internals and activations are recomputed inside the fused backward kernels.
    k = shape.experts_per_token
    saved = shape.saved
    products = (2 if shape.mlp == "gated" else 1) + saved.down
    width = products * shape.ffn * k + ((1 + saved.mlp) * k * shape.hidden if shape.experts > 1 else 0)
    inputs = (2 + saved.attention + saved.mlp) * shape.hidden
    of_block = float(dtypes.compute * (inputs + 2 * shape.query + 2 * shape.kv + width))
    return of_block + _added_bytes(shape, dtypes)


def _selective_bytes(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, all_saved: Array) -> Array:
    """Activation bytes that selective checkpointing keeps in a block in addition to the block's input."""
    size, k = dtypes.compute, shape.experts_per_token
    attention = c.tokens * (size * shape.query) + _attention_extra(shape, c, dtypes, impl)
    if impl.selective == "alternate_blocks":
        return all_saved / 2
    if impl.selective == "attention":
        return c.tokens * (_norm_bytes(shape, dtypes, impl) + _mlp_bytes(shape, dtypes, impl)) + c.tokens * (
            size * (2 * shape.query + 2 * shape.kv)
        )
    gated = shape.mlp == "gated"
    # Ranks that split a block multiply with their part of the input: each product is a partial sum for all positions.
    partial = (c.tensor - 1.0) * shape.hidden
    if impl.selective == "second_matmuls":
        # Of q, k, v, o, gate, up, down every odd one; of qkv, o, up, down the first and third.
        width = (
            shape.query + shape.kv + k * shape.ffn + shape.hidden
            if gated
            else (shape.query + 2 * shape.kv + k * shape.ffn)
        ) + partial * gated
    else:
        all_widths = shape.query + 2 * shape.kv + shape.hidden + k * (shape.ffn * (2 if gated else 1) + shape.hidden)
        width = all_widths + 2.0 * partial
        if shape.adapter is not None:
            width = width + sum(shape.adapter.rank + outputs for _, outputs in shape.adapter.matrices)
        width = kept_products.kept_width(shape, c, width - mlp_slices.unkept_products(shape, c))
        if impl.attention == "eager":
            # Of its two products, the one that computes the scores is not kept.
            keeps_second = c.selective_keeps == SECOND_PRODUCTS
            attention = np.where(keeps_second, c.tokens * (size * shape.query), attention)
    return np.minimum(c.tokens * (size * width) + attention, all_saved)


def logits_bytes(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation) -> Array:
    """Bytes of the output head's logits, and of the fp32 values of log-softmax and its gradients, at their peak."""
    if shape.step_trace is not None:
        return traced_activations.loss_bytes(shape.step_trace, c)
    if not impl.language_head:
        return c.tokens * 0.0
    # In forward the head's output stands beside its fp32 copy and log-softmax; in backward it may be gone.
    logit_bytes = dtypes.compute if impl.keeps_logits else 0
    fp32 = 4.0 * impl.fp32_logit_copies / impl.loss_chunks
    copies = 1.0 if impl.splits_logits else c.tensor
    norm: Array = held_positions(c, impl) * _final_norm_bytes(shape, dtypes, impl)
    whole = c.tokens * copies * shape.vocab * (logit_bytes + fp32)
    return np.where(c.loss_chunk > 0, _chunk_bytes(shape, c, dtypes, impl), whole) + c.tokens * norm


def _chunk_bytes(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation) -> Array:
    """Peak bytes of a loss that is computed in chunks (`workers.rank.model.chunked_loss`): one chunk's logits, and the
    output head's gradient, which is summed over the chunks in fp32."""
    logits = np.minimum(c.loss_chunk, c.tokens * c.tensor) * shape.vocab / c.tensor
    head = float(shape.vocab * shape.hidden) * trained_part.outside(shape, impl) / c.tensor
    several = c.loss_chunks > 1
    # In fp32 a chunk's product is added in place.
    product = np.where((dtypes.compute < 4) | (c.tensor > 1) | ~several, dtypes.compute * head, 0.0)
    summed = np.where(several | (dtypes.compute < 4), 4.0 * head, 0.0)
    # Ranks that split the vocabulary leave the gradient to autograd, with several fp32 values of each logit.
    fp32 = 4.0 * np.where(c.tensor > 1, impl.fp32_logit_copies, 1.0)
    # Compiled, the gradient takes the place of the logits, and fp32 values are in registers alone.
    fp32 = np.where(c.loss_compiled > 0, 0.0, fp32)
    of_chunk = np.maximum(
        several * summed + logits * (dtypes.compute + fp32),
        summed + product + logits * dtypes.compute,
    )
    # Gradients of the head's inputs, chunk by chunk, and all of them in one tensor.
    hidden = c.tokens * c.tensor * (2.0 * dtypes.compute * shape.hidden)
    return of_chunk + hidden
