"""Time of collectives by size, group and topology, and how often each backend calls them."""

from dataclasses import dataclass

import numpy as np

from tuner.footprint.candidates import DDP, FSDP1, FSDP2, ZERO, Array, Candidates, Dtypes, Implementation
from tuner.footprint.fsdp import expert_padding
from tuner.model_shape import ModelShape
from tuner.throughput.rates import Network

_TENSORS = 9.0
"""Parameters of a block: ZeRO moves none in parts, so it makes no more calls than that, however small its buckets."""


def ring_seconds(total: Array, calls: Array, ranks: Array, network: Network, stride: Array | float = 1.0) -> Array:
    """All-gather or reduce-scatter of `total` bytes (the whole, unsharded size) in `calls` equal calls.

    A ring moves (n-1)/n of the bytes through each rank's slowest link. Ranks of a group are `stride` apart: a group
    within one node sees the links, one that spans nodes the network, of which each rank on a node has its share;
    consecutive ranks of one node share the node's whole network (NCCL uses every NIC of the node for one ring set).
    """
    ranks = np.asarray(ranks, dtype=float)
    span = ranks * stride
    inside = span <= network.gpus_per_node
    local = np.minimum(ranks, np.maximum(network.gpus_per_node / np.asarray(stride, dtype=float), 1.0))
    across = np.minimum(network.inter * local, network.intra)
    bandwidth = np.where(inside, network.intra, across)
    per_call = total / np.maximum(calls, 1.0)
    ramp = per_call / (per_call + network.half_bytes)
    steps = np.where(inside, network.intra_latency_s, network.inter_latency_s) * np.log2(np.maximum(ranks, 2.0))
    moved = total * (ranks - 1.0) / np.maximum(ranks, 1.0)
    seconds = moved / (bandwidth * ramp) + calls * steps
    if network.measured:
        seconds = np.where(inside, calls * _as_measured(moved / np.maximum(calls, 1.0), network), seconds)
    return np.where(ranks > 1, seconds, 0.0)


def _as_measured(size: Array, network: Network) -> Array:
    """Seconds of one call: between the sizes that were measured linearly, beyond them at the largest one's rate."""
    sizes, seconds = (np.array(column) for column in zip(*network.measured, strict=True))
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
    padding = (expert_padding(shape, c) - 1.0) * shape.experts * shape.mlp_matrix_parameters * shape.layers
    count = shape.parameters + padding
    trained = count * impl.trainable
    units = np.ceil(shape.layers / c.blocks_per_unit) + 1.0
    fsdp = (c.backend == FSDP1) | (c.backend == FSDP2)
    zero3 = (c.backend == ZERO) & (c.stage == 3)
    zero12 = (c.backend == ZERO) & (c.stage < 3)
    sharded = fsdp | zero3
    # ZeRO-3 gathers parameter by parameter (about nine calls a block), coalesced by the prefetch bucket.
    tensors = shape.layers * _TENSORS + 3.0
    calls = np.where(zero3, np.clip(count / np.maximum(c.prefetch_bucket, 1.0), units, tensors), units)
    # Under autocast nothing tells FSDP to cast before it gathers.
    size = dtypes.master if impl.autocast else dtypes.compute
    gather = ring_seconds(zero + size * count, calls, c.shard, network)
    backward_group = np.where(zero3 & (c.secondary > 1), c.secondary, np.minimum(c.regather, c.shard))
    gather_again = ring_seconds(zero + size * count, calls, backward_group, network)
    whole = c.regather < 2
    reduce_calls = np.where(zero3, np.minimum(np.ceil(trained / c.reduce_bucket), tensors), units)
    scatter = ring_seconds(zero + dtypes.reduce * trained, reduce_calls, c.shard, network)
    across = 2.0 * ring_seconds(dtypes.reduce * trained / c.shard, units, c.replicate, network, stride=c.shard)
    ddp_calls = np.maximum(trained * dtypes.master / c.ddp_bucket, 1.0)
    all_reduce = 2.0 * ring_seconds(zero + dtypes.master * trained, ddp_calls, c.ranks, network)
    zero_calls = np.clip(trained / c.reduce_bucket, 1.0, tensors)
    zero_reduce = 2.0 * ring_seconds(zero + dtypes.compute * trained, zero_calls, c.shard, network)
    every = (c.sync_last == 0) * 1.0
    reduce_middle = np.where(
        sharded, (scatter + np.where(c.sync_shard_only > 0, 0.0, across)) * every,
        np.where(zero12, zero_reduce * (c.stage >= 2), np.where(c.backend == DDP, all_reduce * every, 0.0)),
    )  # fmt: skip
    reduce_last = np.where(
        sharded, scatter + across, np.where(zero12, zero_reduce, np.where(c.backend == DDP, all_reduce, 0.0))
    )
    gather_back = np.where(sharded & ~whole, gather_again, 0.0)
    # Without resharding, parameters are gathered once per step (FSDP keeps them over the accumulation steps).
    forward = np.where(sharded, np.where(whole, gather / np.maximum(c.accumulation, 1.0), gather), 0.0)
    return Traffic(
        forward=forward,
        backward=gather_back + reduce_middle,
        last_backward=gather_back + reduce_last,
        after_step=np.where(
            zero12,
            ring_seconds(zero + dtypes.compute * count, np.maximum(count / c.gather_bucket, 1.0), c.shard, network),
            0.0,
        ),
        unhidden=np.where(sharded, (forward + reduce_last) / units, np.where(c.backend == DDP, 0.1 * all_reduce, 0.0)),
        network_bound=np.where(np.where(sharded, c.shard, c.ranks) > network.gpus_per_node, 1.0, 0.0),
    )
