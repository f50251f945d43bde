"""Time of collectives by size, group and topology. Each backend's prediction decides which collectives a step has."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardtune.tuner.prediction.candidates import Array
from shardtune.tuner.prediction.rates import Curve, Network

Operation = Literal["all_gather", "reduce_scatter", "all_reduce"]
_TREE = 0.6
"""Bandwidth of a tree all-reduce relative to a ring's, for messages of megabytes (NCCL 2.19 `graph/tuning.cc`,
`treeCorrectionFactor` and 0.9)."""


def ring_seconds(
    total: Array,
    calls: Array,
    ranks: Array,
    network: Network,
    operation: Operation = "all_gather",
    stride: Array | float = 1.0,
) -> Array:
    """Seconds of a collective over `total` bytes (the whole, unsharded size) in `calls` equal calls.

    A ring moves (n-1)/n of the bytes through each rank's slowest link, an all-reduce twice that. Ranks of a group are
    `stride` apart. A group within one node uses the links between its GPUs. A group that spans nodes uses the network.
    If its ranks on a node are consecutive, they use the node's whole network (NCCL uses every NIC of the node for one
    ring set); otherwise each rank has an equal part of the network. All-gather and reduce-scatter have no other
    algorithm than the ring, whose latency grows with the ranks.
    """
    ranks = np.asarray(ranks, dtype=float)
    sends = (ranks > 1) & (total > 0)
    if not np.any(sends):
        # Nobody divides experts in most searches, for example.
        return np.zeros(np.broadcast_shapes(*(np.shape(values) for values in (total, calls, ranks, stride))))
    span = ranks * stride
    inside = span <= network.gpus_per_node
    local = np.minimum(ranks, np.maximum(network.gpus_per_node / np.asarray(stride, dtype=float), 1.0))
    across = np.minimum(network.inter * local, network.intra)
    bandwidth = np.where(inside, network.intra, across)
    per_call = total / np.maximum(calls, 1.0)
    ramp = np.maximum(per_call / (per_call + network.half_bytes), 1e-12)
    passes = 2.0 if operation == "all_reduce" else 1.0
    moved = total * (ranks - 1.0) / np.maximum(ranks, 1.0)
    steps = np.where(inside, network.intra_latency_s, network.inter_latency_s) * np.log2(np.maximum(ranks, 2.0))
    hops = calls * np.maximum(steps, np.where(inside, 0.0, _hops(ranks, local, network)))
    seconds = passes * (moved / (bandwidth * ramp) + hops)
    if operation == "all_reduce":
        # NCCL takes a tree where a ring's hops would cost more than the tree's lower bandwidth.
        tree = passes * (moved / (_TREE * bandwidth * ramp) + calls * steps)
        seconds = np.minimum(seconds, tree)
    each = moved / np.maximum(calls, 1.0)
    is_whole = local >= network.gpus_per_node
    # `local` ranks of a node are adjacent in one ring: it crosses to the next node once for all of them.
    for curve, mask, size in (
        (network.measured.get(operation), inside, each),
        (network.spanning.get(operation), ~inside & is_whole, each),
        (network.across.get(operation), ~inside & ~is_whole, each / local),
    ):
        if curve:
            seconds = np.where(mask, calls * _as_measured(size, curve), seconds)
    return np.where(sends, seconds, 0.0)


def _hops(ranks: Array, local: Array, network: Network) -> Array:
    """Latency of a ring collective: seconds until the first bytes have reached every rank, hop by hop. Only a few of
    the hops cross the network between nodes."""
    nodes = ranks / local
    return network.intra_hop_s * (ranks - nodes) + network.inter_hop_s * (nodes - 1.0)


def _as_measured(size: Array, curve: Curve) -> Array:
    """Seconds of one collective call, interpolated between measured times: linear between the measured sizes; beyond
    the largest, at the rate of the largest."""
    sizes, seconds = (np.array(column) for column in zip(*curve, strict=True))
    per_call: Array = np.interp(size, sizes, seconds) * np.maximum(size / sizes[-1], 1.0)
    return per_call


@dataclass(frozen=True)
class Traffic:
    """Seconds of communication on one rank in each pass of a step (forward, backward, after the optimizer), as if none
    of it overlapped with computation."""

    forward: Array
    """Seconds of communication in the forward pass of one micro batch."""
    backward: Array
    """Seconds of communication in the backward pass of a micro batch that does not end the step."""
    last_backward: Array
    """Seconds of communication in the backward pass of the micro batch that ends the step."""
    after_step: Array
    """Seconds of communication after the optimizer step, which overlap with nothing."""
    unhidden: Array
    """Seconds of communication in each micro batch that cannot overlap: the first unit's gather and the last unit's
    reduction."""
    network_bound: Array
    """Array with 1 for each candidate whose slowest link is the network between nodes, else 0."""
