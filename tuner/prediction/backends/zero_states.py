"""States of DeepSpeed's ZeRO on one rank (0.19.8: `runtime/bf16_optimizer.py`, `zero/stage_1_and_2.py`,
`zero/stage3.py`)."""

import numpy as np

from shardtune.tuner.prediction.backends import trained_fractions as trained_part
from shardtune.tuner.prediction.backends.states import States, tied_gradients
from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation, Mask
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.tensors import elements_up_to


def _cast_bytes(c: Candidates, d: Dtypes, elements: Array) -> Array:
    """Bytes of copies of gradients while ZeRO all-reduces them in another dtype (`average_tensor`), and of gradients
    too large for the flat buffer."""
    outside = np.where((c.contiguous > 0) & (elements <= c.reduce_bucket), 0.0, float(d.compute))
    return elements * (outside + (d.reduce if d.reduce != d.compute else 0.0))


def _scatter_bytes(c: Candidates, d: Dtypes, elements: Array, gloo: bool) -> Array:
    """Bytes that ZeRO-3 needs while it reduces a bucket of gradients (`__avg_scatter_grads`).

    The bytes include gradients outside the flat buffer and their cast, the interleaved copy that is scattered
    (`reduce_scatter_coalesced`), and gloo's clone of that copy.
    """
    return _cast_bytes(c, d, elements) * ~((c.contiguous > 0) & (elements <= c.reduce_bucket)) + elements * (
        d.reduce * (2.0 if gloo else 1.0)
    )


def zero_1_2(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, _gloo: bool) -> States:
    """Bytes of the model states of ZeRO-1/2 on one rank, at several times in a step: whole compute-dtype parameters,
    sharded fp32 masters and optimizer states."""
    zero, count = c.tokens * 0.0, shape.parameters / c.tensor
    trained = count * trained_part.fraction(shape, impl)
    on_device = 1.0 - c.offload_optimizer
    bf16_optimizer = is_bf16_optimizer(c, d)
    early, late = _gradient_bytes(c, d, trained, bf16_optimizer)
    return States(
        parameters=zero + trained_part.compute_bytes(shape, d) * count + trained_part.scale_bytes(shape),
        # A copy even where the weights are fp32 already (`single_partition_of_fp32_groups` is a clone).
        masters=zero + d.master * trained / c.shard * on_device,
        optimizer=d.moments * trained / c.shard * on_device,
        gradients_early=early,
        gradients_second=early,
        gradients_next=late,
        gradients_last=late,
        gradients_late=late,
        gathered_loss=zero,
        gathered_backward=zero,
        gathered_middle=zero,
        gathered_last=zero,
        **_bucket_bytes(shape, c, d, impl, bf16_optimizer),
        unit_gradients=zero,
        step=np.where((c.offload_optimizer > 0) | bf16_optimizer, 0.0, d.master * trained / c.shard),
    )


def is_bf16_optimizer(c: Candidates, d: Dtypes) -> Mask:
    """Whether DeepSpeed uses its BF16_Optimizer: bf16 with fp32 accumulation in stage 1."""
    return np.asarray(
        (c.stage == 1) & (d.reduce != d.compute) & (c.offload_optimizer == 0) & (not d.scales_loss), dtype=bool
    )


def _gradient_bytes(c: Candidates, d: Dtypes, trained: Array, bf16_optimizer: Mask) -> tuple[Array, Array]:
    """Bytes of ZeRO's gradients, as a pair: when backward begins and when it ends."""
    # BF16_Optimizer holds unsharded fp32 gradients for the whole step, and bf16 gradients that are zeroed, not freed,
    # between its micro batches. Offloaded, stage 1 accumulates in `param.grad_accum`, and both stages keep the reduced
    # partition on the device (`_use_compact_grad_partition_buffer`; stage 1 from the last micro batch on) before it
    # goes to the host.
    offloaded, mixed = c.offload_optimizer > 0, d.reduce != d.compute
    unsharded = np.where(bf16_optimizer, d.reduce + d.compute, d.reduce if mixed else d.compute) * trained
    accumulator = np.where(offloaded, float(mixed), 1.0) * d.reduce * trained / c.shard
    late = np.where(c.stage == 1, unsharded + np.where(offloaded, accumulator, 0.0), accumulator)
    accumulates = c.accumulation > 1
    bf16_gradients = (d.reduce + d.compute * accumulates) * trained
    early = np.where(accumulates, np.where(offloaded & (c.stage == 1), unsharded, late), 0.0)
    return np.where(bf16_optimizer, bf16_gradients, early), late


def _bucket_bytes(
    shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, bf16_optimizer: Mask
) -> dict[str, Array]:
    """Bytes of gradients in the communication buffers of ZeRO-1/2."""
    # The buffer is allocated whole (`reduce_bucket_size` elements), however small the model; stage 1 stages the
    # gradients that it accumulates, stage 2 low-precision gradients.
    trained = shape.parameters / c.tensor * trained_part.fraction(shape, impl)
    table = shape.embedding_parameters / c.tensor * trained_part.outside(shape, impl)
    plain, offloaded = c.stage == 2, c.offload_optimizer > 0
    accumulates = c.accumulation > 1
    element = np.where(c.stage == 1, d.reduce, d.compute)
    # Without contiguous gradients there is no buffer: a bucket's gradients are flattened where they are reduced
    # (`buffered_reduce_fallback`), in stage 1 without overlap only when the last backward has ended.
    copied = np.minimum(c.reduce_bucket, trained) * element
    flat = np.where(c.contiguous > 0, (1.0 + c.double_buffer) * c.reduce_bucket * element, copied)
    # Made with the optimizer: one low-precision gradient, the largest, on its way to the host.
    transit = np.where(offloaded, d.compute * float(shape.largest_parameter), 0.0)
    buckets = np.where(bf16_optimizer, 0.0, flat) + transit
    reducing = plain * _cast_bytes(c, d, np.where(c.reduce_bucket < trained, c.reduce_bucket, 0.0))
    large = plain * _cast_bytes(c, d, np.where(table > c.reduce_bucket, table, 0.0))
    # The last bucket is reduced when backward ends, and what it gives is added to the partition from a buffer of its size.
    added = np.where(accumulates & plain, d.reduce * trained / c.shard, 0.0)
    # A tied table's gradient is complete only then: its two parts stand beside their sum.
    tied = plain * (shape.tied * tied_gradients(shape, c) * d.compute * table)
    reduced = plain * _cast_bytes(c, d, np.minimum(c.reduce_bucket, trained))
    end = buckets + added + np.maximum(np.maximum(reduced, large), tied)
    # Stage 1 has freed its buffer then; the table's gradient comes last, a tied table's two besides their sum.
    last = d.compute * tied_gradients(shape, c) + (d.reduce if d.reduce != d.compute else 0.0)
    between = np.where(accumulates & (c.contiguous > 0), buckets, transit)
    within = np.where((c.contiguous == 0) & (c.stage == 1) & (c.double_buffer == 0), transit, buckets)
    return {
        "buckets": within + reducing,
        "buckets_loss": between,
        "buckets_step": between,
        "buckets_first": within + large,
        "end": np.where(offloaded & (c.stage == 1), transit + last * table, end),
    }


def stays_gathered(shape: ModelShape, c: Candidates) -> tuple[Array, Array]:
    """Number of elements that ZeRO-3 gathers once for forward and backward together: persistent parameters, and
    parameters that stay gathered from forward to backward.

    A parameter stays gathered if at most `stage3_max_reuse_distance` elements are used between its forward and its
    backward (`__params_to_release`). These are all elements after it in the model, counted twice. So the last
    parameters of the model stay gathered, as many as half of that distance holds.
    """
    persistent = np.where(c.persistence > 0, elements_up_to(shape, c.persistence), 0.0)
    return persistent, np.minimum(c.reuse / 2.0, float(shape.parameters) - persistent)


def zero_3(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, gloo: bool) -> States:
    """Bytes of ZeRO-3's states on one rank, at several times in a step: sharded compute-dtype parameters and fp32
    masters; gradients in one flat fp32 partition."""
    zero, count = c.tokens * 0.0, float(shape.parameters)
    trained = count * trained_part.fraction(shape, impl)
    on_device = 1.0 - c.offload_optimizer
    gradients = np.where(c.offload_optimizer > 0, 0.0, d.reduce * trained / c.shard)
    return States(
        parameters=d.compute * count / c.shard * (1.0 - c.offload_parameters),
        # A copy in fp32 too: whether the partition could be its own master is asked by comparing a device with its name.
        masters=zero + d.master * trained / c.shard * on_device,
        optimizer=d.moments * trained / c.shard * on_device,
        gradients_early=gradients,
        gradients_second=gradients,
        gradients_next=gradients,
        gradients_last=gradients,
        gradients_late=gradients,
        **_gathered_bytes_3(shape, c, d),
        **_bucket_bytes_3(shape, c, d, impl, gloo),
        unit_gradients=zero,
        step=np.where(c.offload_optimizer > 0, 0.0, d.master * trained / c.shard),
    )


def _gathered_bytes_3(shape: ModelShape, c: Candidates, d: Dtypes) -> dict[str, Array]:
    """Bytes of ZeRO-3's gathered parameters: those in use and prefetched, at most `max_live` elements, and those that
    stay gathered."""
    count = float(shape.parameters)
    in_use = np.maximum(float(shape.block_parameters), float(shape.largest_parameter))
    live = np.minimum(np.minimum(c.max_live, count), in_use + np.minimum(c.prefetch_bucket, count))
    live = np.maximum(live, np.minimum(in_use, count))
    persistent, reused = stays_gathered(shape, c)
    # Backward has used the head when its first block runs, and frees what it has used.
    freed = 0.0 if shape.tied else float(shape.embedding_parameters)
    secondary = np.where(c.secondary > 1, d.compute * count / c.secondary, 0.0)

    def bytes_of(elements: Array) -> Array:
        kept: Array = d.compute * np.minimum(persistent + elements, count) + secondary
        return kept

    later = bytes_of(np.maximum(live, reused - freed))
    return {
        "gathered_loss": bytes_of(np.maximum(live, reused)),
        "gathered_backward": later,
        "gathered_middle": later,
        "gathered_last": bytes_of(live),
    }


def _bucket_bytes_3(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, gloo: bool) -> dict[str, Array]:
    """Bytes of ZeRO-3's communication buffers for gradients: one flat buffer that exists from the start, and the copies
    made while gradients are reduced."""
    zero, table = c.tokens * 0.0, float(shape.embedding_parameters) * trained_part.outside(shape, impl)
    trained = float(shape.parameters) * trained_part.fraction(shape, impl)
    bucket = c.reduce_bucket * d.reduce * (c.contiguous > 0)
    full = bucket + _scatter_bytes(c, d, np.minimum(c.reduce_bucket, trained), gloo)
    # A bucket that holds the whole model is reduced when backward ends; until then gradients gather outside a flat buffer.
    waiting = np.where(c.contiguous > 0, 0.0, d.compute * (trained - table))
    large = bucket + np.where(table > c.reduce_bucket, _scatter_bytes(c, d, zero + table, gloo), d.compute * table)
    return {
        "buckets": np.where(c.reduce_bucket < trained, full, bucket + waiting),
        "buckets_loss": bucket,
        "buckets_step": bucket,
        # A tied table's gradient is complete, and reduced, only when backward ends.
        "buckets_first": bucket + d.compute * table if shape.tied else large,
        "end": zero + np.maximum(full, large) + d.compute * table * np.maximum(1.0, tied_gradients(shape, c) - 1.0),
    }
