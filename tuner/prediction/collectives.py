"""Time of collectives by size, group and topology; which of them a step has is each backend's."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardtune.tuner.prediction.candidates import Array
from shardtune.tuner.prediction.rates import Curve, Network

Operation = Literal["all_gather", "reduce_scatter", "all_reduce"]
_TREE = 0.6
"""Bandwidth of a tree over a ring's, for messages of megabytes (NCCL 2.19 `graph/tuning.cc`, `treeCorrectionFactor` and 0.9)."""


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
    for one ring set). Gathering and scattering have no other algorithm than the ring, whose latency grows with the ranks.
    """
    ranks = np.asarray(ranks, dtype=float)
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
    # So many of a node's ranks are neighbours in one ring: it crosses to the next node once for all of them.
    for curve, where, size in (
        (network.measured.get(operation), inside, each),
        (network.spanning.get(operation), ~inside & is_whole, each),
        (network.across.get(operation), ~inside & ~is_whole, each / local),
    ):
        if curve:
            seconds = np.where(where, calls * _as_measured(size, curve), seconds)
    return np.where((ranks > 1) & (total > 0), seconds, 0.0)


def _hops(ranks: Array, local: Array, network: Network) -> Array:
    """Seconds until a ring's first bytes have been at every rank: one after the other, few of them over the network."""
    nodes = ranks / local
    return network.intra_hop_s * (ranks - nodes) + network.inter_hop_s * (nodes - 1.0)


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
