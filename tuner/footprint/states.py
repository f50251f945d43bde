"""Parameters, gradients, optimizer state, masters, gathered copies and buckets of one rank, as each backend keeps them.

Sources: ZeRO, Rajbhandari et al. (arXiv:1910.02054, section 3.1 and 5); torch 2.13 `distributed/fsdp/_fully_shard`
(`_fsdp_collectives.py`, `_fsdp_param_group.py`) and `nn/parallel/distributed.py`; DeepSpeed 0.19.8 `runtime/bf16_optimizer.py`,
`runtime/zero/stage_1_and_2.py`, `runtime/zero/stage3.py`.
"""

from dataclasses import dataclass

import numpy as np

from tuner.footprint.candidates import DDP, FSDP1, FSDP2, NONE, SINGLE, ZERO, Array, Candidates, Dtypes, Implementation
from tuner.model_shape import ModelShape


@dataclass(frozen=True)
class States:
    """Bytes of one rank. What offloading puts into host memory is already taken out."""

    parameters: Array
    masters: Array
    optimizer: Array
    gradients_early: Array
    """When backward begins: those of earlier micro batches, and buffers that always exist."""
    gradients_second: Array
    """When the second block of backward runs: the first one's are there."""
    gradients_next: Array
    """When the last block but one of backward runs."""
    gradients_last: Array
    """When the last block of backward runs."""
    gradients_late: Array
    """When backward ends."""
    gathered_loss: Array
    gathered_backward: Array
    gathered_middle: Array
    """While a block runs that is neither backward's first nor its last."""
    gathered_last: Array
    """When the last block of backward runs: nothing arrives any more."""
    buckets: Array
    """Communication buffers that exist in backward once a block has been reduced."""
    buckets_loss: Array
    buckets_step: Array
    """While the optimizer steps."""
    buckets_first: Array
    """While the first block of backward runs."""
    unit_gradients: Array
    """Whole gradients of the unit in work, as they stand before its reduction."""
    end: Array
    """FSDP: what the root unit's reduction needs when backward ends, gathered parameters included."""
    step: Array
    """Temporaries of the optimizer step."""


def states(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation) -> States:
    """Bytes per candidate."""
    kinds = (
        ((c.backend == SINGLE) | (c.backend == DDP), _replicated),
        ((c.backend == FSDP1) | (c.backend == FSDP2), _fully_sharded),
        ((c.backend == ZERO) & (c.stage < 3), _zero12),
        ((c.backend == ZERO) & (c.stage == 3), _zero3),
    )
    present = [(mask, make) for mask, make in kinds if np.any(mask)]
    parts = [(mask, make(shape, c, dtypes, impl)) for mask, make in present]
    if len(parts) == 1:
        return parts[0][1]
    return States(
        **{
            name: np.select([mask for mask, _ in parts], [getattr(part, name) for _, part in parts])
            for name in States.__dataclass_fields__
        }
    )


def _replicated(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation) -> States:
    """DDP and a single device: whole parameters; gradients in the parameters' dtype, and once more in DDP's buckets."""
    zero, count = c.tokens * 0.0, float(shape.parameters)
    trained = count * impl.trainable
    gradients = zero + d.master * trained
    # The cast copy of each weight is saved by its matrix product; recomputation makes it again, block by block.
    blocks = np.where(c.checkpointing == NONE, float(shape.layers), 1.0) * shape.block_parameters
    copies = d.compute * (blocks + shape.outside_parameters) if d.compute != d.master else zero
    is_ddp = c.backend == DDP
    # gradient_as_bucket_view=False: Reducer allocates buckets for all gradients when it is built.
    buckets = np.where(is_ddp & (c.bucket_view == 0), d.master * trained, 0.0)
    grown = 0.0 if impl.optimizer_in_backward else 1.0
    early = np.where((c.accumulation > 1) | (is_ddp & (c.bucket_view > 0)), gradients, 0.0)
    return States(
        parameters=zero + d.master * count,
        masters=zero,
        optimizer=zero + d.moments * trained,
        gradients_early=early * grown,
        gradients_second=early * grown,
        gradients_next=gradients * grown,
        gradients_last=gradients * grown,
        gradients_late=gradients * grown,
        gathered_loss=copies,
        gathered_backward=copies,
        buckets=buckets,
        buckets_loss=buckets,
        gathered_middle=copies,
        gathered_last=copies,
        buckets_step=buckets,
        buckets_first=buckets,
        unit_gradients=zero,
        end=zero,
        step=zero + (0.0 if impl.fused_optimizer else d.master * trained),
    )


def expert_padding(shape: ModelShape, c: Candidates) -> Array:
    """Elements of stacked experts as FSDP2 gathers them, over those there are.

    transformers 5 keeps the experts of a layer in one tensor of (experts, …), which `fully_shard` splits along the
    experts: more ranks than experts leave ranks empty, and the gathered buffer is padded to one expert per rank.
    """
    if shape.experts == 1:
        return np.ones_like(c.shard)
    padded = np.ceil(shape.experts / c.shard) * c.shard / shape.experts
    return np.where(c.backend == FSDP2, padded, 1.0)


def _fully_sharded(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation) -> States:
    """FSDP1 and FSDP2: fp32 shards; compute copies gathered per unit; the root unit stays gathered."""
    zero, plain = c.tokens * 0.0, float(shape.parameters)
    extra = (expert_padding(shape, c) - 1.0) * shape.experts * shape.mlp_matrix_parameters
    count = plain + shape.layers * extra
    trained = count * impl.trainable
    on_device = 1.0 - c.offload_parameters
    blocks = np.minimum(c.blocks_per_unit, shape.layers)
    unit = blocks * (shape.block_parameters + extra)
    root = float(shape.outside_parameters)
    size = d.master if impl.autocast else d.compute  # autocast does not tell FSDP to cast before it gathers
    shards = d.master * trained / c.shard
    kept = np.where(c.regather < c.shard, size * (count - root) / c.regather, 0.0)
    arriving = size * unit
    accumulates = c.accumulation > 1
    unsharded = np.where(accumulates & (c.sync_last > 0), d.reduce * trained, 0.0)
    partial = np.where(accumulates & (c.sync_shard_only > 0), d.reduce * trained / c.shard, 0.0)
    # Reduce-scatter's input lives until the next unit's begins; the root's gradients wait for the end of backward.
    unit_trained, root_trained = unit * impl.trainable, root * impl.trainable
    head = root_trained if shape.tied else root_trained / 2
    early = np.where(accumulates & (c.sync_last == 0), shards, 0.0) * on_device + unsharded + partial
    # `set_is_last_backward(False)` keeps the root's reduce-scatter input until the next micro batch reduces a unit.
    lingering = np.where(accumulates & (c.sync_last == 0) & (c.backend == FSDP2), d.reduce * root_trained, 0.0)
    whole = c.regather < 2
    held = size * root + kept
    units, ahead = np.ceil(shape.layers / c.blocks_per_unit), np.maximum(c.backward_prefetch, 1.0)
    return States(
        parameters=d.master * count / c.shard * on_device,
        masters=zero,
        optimizer=d.moments * trained / c.shard * (1.0 - c.offload_optimizer),
        gradients_early=early,
        gradients_second=early + np.where(early > 0, 0.0, d.master * unit_trained / c.shard * on_device),
        gradients_next=np.maximum(early, shards * on_device * np.maximum(1.0 - (root + 2 * unit) / count, 0.0)),
        gradients_last=np.maximum(early, shards * on_device * (1.0 - (root + unit) / count)),
        # The root's own gradients are still whole: they are in `end`.
        gradients_late=np.where(unsharded > 0, unsharded, shards * on_device * (1.0 - root / count)) + partial,
        # The last all-gather's output is still held when the loss is computed.
        gathered_loss=np.where(whole, size * count, held) + arriving,
        # One unit in use, one arriving.
        gathered_backward=np.where(whole, size * count, held + arriving * (1.0 + ahead * (units > 1))),
        gathered_middle=np.where(whole, size * count, held + arriving * (1.0 + ahead * (units > 2))),
        gathered_last=np.where(whole, size * count, held + arriving),
        buckets=d.reduce * unit_trained + size * head,
        buckets_loss=lingering,
        buckets_step=zero,
        buckets_first=lingering + size * head,
        unit_gradients=size * blocks * (shape.block_parameters * impl.trainable),
        # The root is reduced last, after its parameters are freed: whole gradients and the reduce-scatter's input. Before
        # that, a tied table's two gradients stand beside their sum.
        end=np.maximum(
            size * root_trained + d.reduce * root_trained,
            size * root + (3.0 if shape.tied else 1.0) * size * root_trained + d.reduce * unit_trained,
        )
        + zero,
        step=shards * root / count * on_device
        + np.where(c.offload_optimizer > 0, 0.0, 0.0 if impl.fused_optimizer else shards),
    )


def _zero12(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation) -> States:
    """ZeRO-1/2: whole compute-dtype parameters, sharded fp32 masters and moments."""
    zero, count = c.tokens * 0.0, float(shape.parameters)
    trained = count * impl.trainable
    on_device = 1.0 - c.offload_optimizer
    masters = d.master * trained / c.shard * on_device if d.master != d.compute else zero
    # bf16 with fp32 accumulation in stage 1 is DeepSpeed's BF16_Optimizer: unsharded fp32 gradients for the whole step,
    # and bf16 gradients that are zeroed, not freed.
    bf16_optimizer = (c.stage == 1) & (d.reduce != d.compute) & (c.offload_optimizer == 0)
    stage1 = np.where(bf16_optimizer, (d.reduce + d.compute) * trained, d.compute * trained)
    accumulator = np.where(c.offload_optimizer > 0, 0.0, d.reduce * trained / c.shard)
    late = np.where(c.stage == 1, stage1, accumulator)
    early = np.where(bf16_optimizer, stage1, np.where(c.accumulation > 1, late, 0.0))
    buffers = np.where(c.contiguous > 0, 1.0 + c.double_buffer, 1.0) * np.minimum(c.reduce_bucket, trained)
    # The buffer is allocated whole (reduce_bucket_size elements), however small the model; stage 1 stages what it
    # accumulates, stage 2 low-precision gradients.
    element = np.where(c.stage == 1, d.reduce, d.compute)
    whole = np.where(c.contiguous > 0, (1.0 + c.double_buffer) * c.reduce_bucket, buffers) * element
    buckets = np.where(bf16_optimizer, 0.0, whole)
    fp32_gradient = np.where((c.offload_optimizer > 0) | bf16_optimizer, 0.0, 4.0 * trained / c.shard)
    return States(
        parameters=zero + d.compute * count,
        masters=zero + masters,
        optimizer=d.moments * trained / c.shard * on_device,
        gradients_early=early,
        gradients_second=early,
        gradients_next=late,
        gradients_last=late,
        gradients_late=late,
        gathered_loss=zero,
        gathered_backward=zero,
        buckets=buckets,
        buckets_loss=np.where(c.accumulation > 1, buckets, 0.0),
        gathered_middle=zero,
        gathered_last=zero,
        buckets_step=np.where(c.accumulation > 1, buckets, 0.0),
        buckets_first=buckets,
        unit_gradients=zero,
        end=zero,
        step=fp32_gradient,
    )


def _zero3(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation) -> States:
    """ZeRO-3: sharded compute-dtype parameters and fp32 masters; gradients in one flat fp32 partition; gathered
    parameters up to max_live, and small ones always."""
    zero, count = c.tokens * 0.0, float(shape.parameters)
    trained = count * impl.trainable
    on_device = 1.0 - c.offload_optimizer
    masters = d.master * trained / c.shard * on_device if d.master != d.compute else zero
    largest = float(shape.largest_parameter)
    in_use = np.maximum(float(shape.block_parameters), largest)
    live = np.minimum(np.minimum(c.max_live, count), in_use + np.minimum(c.prefetch_bucket, count))
    live = np.maximum(live, np.minimum(in_use, count))
    secondary = np.where(c.secondary > 1, d.compute * count / c.secondary, 0.0)
    gradients = np.where(c.offload_optimizer > 0, 0.0, d.reduce * trained / c.shard)
    # One flat buffer from the start; what does not fit into it is copied once more on its way to the partition.
    bucket = c.reduce_bucket * d.reduce
    buckets = bucket + np.minimum(float(shape.block_parameters), c.reduce_bucket) * d.compute
    return States(
        parameters=d.compute * count / c.shard * (1.0 - c.offload_parameters),
        masters=zero + masters,
        optimizer=d.moments * trained / c.shard * on_device,
        gradients_early=gradients,
        gradients_second=gradients,
        gradients_next=gradients,
        gradients_last=gradients,
        gradients_late=gradients,
        gathered_loss=d.compute * np.minimum(live, count) + secondary,
        gathered_backward=d.compute * live + secondary,
        buckets=buckets,
        buckets_loss=bucket,
        gathered_middle=d.compute * live + secondary,
        gathered_last=d.compute * live + secondary,
        buckets_step=bucket,
        buckets_first=buckets,
        unit_gradients=zero,
        end=zero,
        step=np.where(c.offload_optimizer > 0, 0.0, 4.0 * trained / c.shard),
    )
