"""Time of collectives by size, group and topology, and how often each backend calls them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardtune.tuner.prediction.footprint.candidates import (
    DDP,
    FSDP1,
    FSDP2,
    ZERO,
    Array,
    Candidates,
    Dtypes,
    Implementation,
    Mask,
)
from shardtune.tuner.prediction.footprint.fsdp import expert_padding
from shardtune.tuner.prediction.footprint.tensors import buckets_filled, modules_above
from shardtune.tuner.prediction.footprint.zero import is_bf16_optimizer, stays_gathered
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.throughput.rates import Curve, Network

_BF16_OPTIMIZER_BUFFER = 5e8
"""Elements that DeepSpeed's engine reduces at a time for it (`buffered_allreduce_fallback`)."""
Operation = Literal["all_gather", "reduce_scatter", "all_reduce"]


def ring_seconds(
    total: Array,
    calls: Array,
    ranks: Array,
    network: Network,
    operation: Operation = "all_gather",
    stride: Array | float = 1.0,
) -> Array:
    """A collective over `total` bytes (the whole, unsharded size) in `calls` equal calls.

    A ring moves (n-1)/n of the bytes through each rank's slowest link, an all-reduce twice that. Ranks of a group are
    `stride` apart: a group within one node sees the links, one that spans nodes the network, of which each rank on a
    node has its share; consecutive ranks of one node share the node's whole network (NCCL uses every NIC of the node
    for one ring set).
    """
    ranks = np.asarray(ranks, dtype=float)
    span = ranks * stride
    inside = span <= network.gpus_per_node
    local = np.minimum(ranks, np.maximum(network.gpus_per_node / np.asarray(stride, dtype=float), 1.0))
    across = np.minimum(network.inter * local, network.intra)
    bandwidth = np.where(inside, network.intra, across)
    per_call = total / np.maximum(calls, 1.0)
    ramp = np.maximum(per_call / (per_call + network.half_bytes), 1e-12)
    steps = np.where(inside, network.intra_latency_s, network.inter_latency_s) * np.log2(np.maximum(ranks, 2.0))
    passes = 2.0 if operation == "all_reduce" else 1.0
    moved = total * (ranks - 1.0) / np.maximum(ranks, 1.0)
    seconds = passes * (moved / (bandwidth * ramp) + calls * steps)
    curve = network.measured.get(operation)
    if curve:
        seconds = np.where(inside, calls * _as_measured(moved / np.maximum(calls, 1.0), curve), seconds)
    return np.where((ranks > 1) & (total > 0), seconds, 0.0)


def _as_measured(size: Array, curve: Curve) -> Array:
    """Seconds of one call: between the sizes that were measured linearly, beyond them at the largest one's rate."""
    sizes, seconds = (np.array(column) for column in zip(*curve, strict=True))
    per_call: Array = np.interp(size, sizes, seconds) * np.maximum(size / sizes[-1], 1.0)
    return per_call


@dataclass(frozen=True)
class Traffic:
    """Seconds of communication on one rank, if nothing hid it."""

    forward: Array
    """Per micro batch."""
    backward: Array
    """Per micro batch that does not end the step."""
    last_backward: Array
    """Of the micro batch that ends it."""
    after_step: Array
    """Serial: after the optimizer."""
    unhidden: Array
    """Of each micro batch, before anything can overlap: the first unit's gather and the last one's reduction."""
    network_bound: Array
    """1 where the slowest link is the network."""


def traffic(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, network: Network) -> Traffic:
    """Communication of every candidate."""
    zero = c.tokens * 0.0
    units = np.ceil(shape.layers / c.blocks_per_unit) + 1.0
    padding = (expert_padding(shape, c) - 1.0) * shape.experts * shape.mlp_matrix_parameters * shape.layers
    trained = (shape.parameters + padding) * impl.trainable
    fsdp, zero3, zero12 = _families(c)
    sharded = fsdp | zero3
    forward, gather_back = _gathers(shape, c, dtypes, impl, network, units)
    filled = buckets_filled(shape, c.reduce_bucket)
    reduce_calls = np.where(zero3, filled, units)
    scatter = ring_seconds(zero + dtypes.reduce * trained, reduce_calls, c.shard, network, "reduce_scatter")
    across = ring_seconds(dtypes.reduce * trained / c.shard, units, c.replicate, network, "all_reduce", c.shard)
    ddp_calls = np.maximum(trained * dtypes.master / c.ddp_bucket, 1.0)
    all_reduce = ring_seconds(zero + dtypes.master * trained, ddp_calls, c.ranks, network, "all_reduce")
    # A bucket is cast to the reduction's dtype first (`communication_data_type`). BF16_Optimizer has buffers of its own.
    zero_calls = np.where(is_bf16_optimizer(c, dtypes), np.ceil(trained / _BF16_OPTIMIZER_BUFFER), filled)
    zero_reduce = ring_seconds(zero + dtypes.reduce * trained, zero_calls, c.shard, network, "all_reduce")
    every = (c.sync_last == 0) * 1.0
    reduce_middle = np.where(
        sharded, (scatter + np.where(c.sync_shard_only > 0, 0.0, across)) * every,
        np.where(zero12, zero_reduce * (c.stage >= 2), np.where(c.backend == DDP, all_reduce * every, 0.0)),
    )  # fmt: skip
    reduce_last = np.where(
        sharded, scatter + across, np.where(zero12, zero_reduce, np.where(c.backend == DDP, all_reduce, 0.0))
    )
    return Traffic(
        forward=forward,
        backward=gather_back + reduce_middle,
        last_backward=gather_back + reduce_last,
        after_step=_after_step(shape, c, dtypes, network),
        unhidden=np.where(sharded, (forward + reduce_last) / units, np.where(c.backend == DDP, 0.1 * all_reduce, 0.0)),
        network_bound=np.where(np.where(sharded, c.shard, c.ranks) > network.gpus_per_node, 1.0, 0.0),
    )


def _families(c: Candidates) -> tuple[Mask, Mask, Mask]:
    """FSDP, ZeRO-3, ZeRO-1/2."""
    is_zero = c.backend == ZERO
    return (c.backend == FSDP1) | (c.backend == FSDP2), is_zero & (c.stage == 3), is_zero & (c.stage < 3)


def _gathers(
    shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, network: Network, units: Array
) -> tuple[Array, Array]:
    """Seconds of forward's and of backward's all-gathers in one micro batch."""
    fsdp, zero3, _ = _families(c)
    padding = (expert_padding(shape, c) - 1.0) * shape.experts * shape.mlp_matrix_parameters * shape.layers
    persistent, reused = stays_gathered(shape, c)
    count = shape.parameters + padding - np.where(zero3, persistent, 0.0)
    again = count - np.where(zero3, reused, 0.0)
    # ZeRO-3 gathers module by module, those together that its prefetch bucket reaches.
    modules = modules_above(shape, c.persistence)
    ahead = np.clip(count / np.maximum(c.prefetch_bucket, 1.0), np.minimum(units, modules), modules)
    calls = np.where(zero3, ahead, units)
    # Under autocast nothing tells FSDP to cast before it gathers.
    size = dtypes.master if impl.autocast else dtypes.compute
    gather = ring_seconds(size * count, calls, c.shard, network)
    group = np.where(zero3 & (c.secondary > 1), c.secondary, np.minimum(c.regather, c.shard))
    gather_again = ring_seconds(size * again, calls * again / np.maximum(count, 1.0), group, network)
    whole = c.regather < 2
    # Parameters that are kept after forward are freed after backward all the same (torch 2.13, `post_backward`), except
    # by FSDP1 under `no_sync` (`_should_free_in_backward`).
    once = (c.backend == FSDP1) & whole & (c.sync_last > 0)
    forward = np.where(fsdp | zero3, gather / np.where(once, np.maximum(c.accumulation, 1.0), 1.0), 0.0)
    return forward, np.where((fsdp & ~whole) | zero3, gather_again, 0.0)


def _after_step(shape: ModelShape, c: Candidates, dtypes: Dtypes, network: Network) -> Array:
    """ZeRO-1/2 gather the updated weights, ZeRO-3 those of its persistent parameters."""
    _, zero3, zero12 = _families(c)
    count = float(shape.parameters)
    calls = np.maximum(count / c.gather_bucket, 1.0)
    weights = ring_seconds(dtypes.compute * count + c.tokens * 0.0, calls, c.shard, network)
    persistent, _ = stays_gathered(shape, c)
    small = np.where(
        persistent > 0, ring_seconds(dtypes.compute * persistent, np.ones_like(calls), c.shard, network), 0.0
    )
    return np.where(zero12, weights, np.where(zero3, small, 0.0))
