"""Time of collectives by size, group and topology. Each backend's prediction decides which collectives a step has."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardtune.tuner.prediction.candidates import Array
from shardtune.tuner.prediction.rates import Curve, Network, Uplinks

Operation = Literal["all_gather", "reduce_scatter", "all_reduce"]
_TREE = 0.6
"""Bandwidth of a tree all-reduce relative to a ring's, for messages of megabytes (NCCL 2.19 `graph/tuning.cc`,
`treeCorrectionFactor` and 0.9)."""


_Mask = NDArray[np.bool_]
Pattern = Literal["ring", "all_to_all", "neighbours"]
"""Pattern of traffic between ranks: each rank sends to the next one of a ring or tree, to all others of its group, or to
the neighbouring pipeline stage."""
_TREE_CROSSINGS = 1.5
"""Traffic of a double binary tree through the uplinks of a leaf switch, relative to a ring's. Counted for NCCL's trees
(2.30 `src/graph/trees.cc`, `ncclGetDtree`) over 8 to 128 nodes in leaves of 2 to 64: 1.5 where each leaf has a power of two of
them and the job has whole leaves, up to 3 otherwise."""


class _UplinkShares(NamedTuple):
    """Fractions of its bandwidth between nodes that a group has where it uses the uplinks of leaf switches."""

    ring: Array | float = 1.0
    tree: Array | float = 1.0
    measured: Array | float = 1.0
    """Fraction relative to the bandwidth with which collectives were measured."""


def _uplink_shares(network: Network, ranks: Array, stride: Array | float, pattern: Pattern) -> _UplinkShares:
    """Fractions of its bandwidth between nodes that each group has through the uplinks of its leaf switches."""
    uplinks = network.uplinks
    if uplinks is None:
        return _UplinkShares()
    crossings = _crossings(uplinks, ranks, stride, float(network.gpus_per_node), pattern)
    capacity = uplinks.nodes_per_leaf / uplinks.oversubscription
    ring, tree = (
        capacity / np.clip(factor * crossings, capacity, float(uplinks.nodes_per_leaf))
        for factor in (1.0, _TREE_CROSSINGS)
    )
    return _UplinkShares(ring, tree, np.minimum(ring / uplinks.in_measurements, 1.0))


def _crossings(uplinks: Uplinks, ranks: Array, stride: Array | float, gpus_per_node: float, pattern: Pattern) -> Array:
    """Traffic that the busiest leaf switch's uplinks would carry in one direction if they did not limit it, as a
    multiple of the bandwidth of a node's network; 0 for groups within a leaf.

    NCCL orders the nodes of a ring by their ranks (2.30 `src/graph/connect.cc`, `connectRings`) and does not know leaf
    switches. If ranks are placed leaf by leaf, a ring leaves each leaf once, with as much bandwidth as it has on one
    node. Rings of a node's ranks, whether one over all of them or one for each, together have the node's bandwidth.
    Groups whose ranks are k nodes apart (such as HSDP's replicas of shard groups over k nodes) lie side by side, so that
    k times as much leaves a leaf, up to the bandwidth of all its nodes. A leaf in which one group ends and another one
    begins has the rings of both. In an all-to-all, each node sends the same amount to each other node. Pipeline stages
    of k nodes send k times a node's bandwidth out of a leaf.
    """
    leaf_nodes = float(uplinks.nodes_per_leaf)
    leaf, span = leaf_nodes * gpus_per_node, np.round(ranks * stride)
    apart = np.maximum(np.asarray(stride, dtype=float) / gpus_per_node, 1.0)
    side_by_side = np.minimum(apart, leaf_nodes)
    ends_with_leaf = (span % leaf == 0) | (span >= uplinks.job_ranks)
    groups = np.where(ends_with_leaf, 1.0, 2.0)
    is_in_leaf = uplinks.job_ranks <= leaf
    if uplinks.scattered:
        crossings = side_by_side * 0.0 + leaf_nodes
    elif pattern == "neighbours":
        crossings = side_by_side
    else:
        is_in_leaf = is_in_leaf | (leaf % np.maximum(span, 1.0) == 0)
        crossings = side_by_side * groups
        if pattern == "all_to_all":
            nodes = np.maximum(span / gpus_per_node / apart, 1.0)
            below = np.minimum(leaf_nodes / side_by_side, nodes) / groups
            crossings = crossings * below * (nodes - below) / np.maximum(nodes - 1.0, 1.0)
    return np.where(is_in_leaf, 0.0, crossings)


def ring_seconds(
    total: Array,
    calls: Array,
    ranks: Array,
    network: Network,
    operation: Operation = "all_gather",
    stride: Array | float = 1.0,
    pattern: Pattern = "ring",
) -> Array:
    """Seconds of a collective over `total` bytes (the whole, unsharded size) in `calls` equal calls.

    A ring moves (n-1)/n of the bytes through each rank's slowest link, an all-reduce twice that. Ranks of a group are
    `stride` apart. A group within one node uses the links between its GPUs. A group that spans nodes uses the network.
    If its ranks on a node are consecutive, they use the node's whole network (NCCL uses every NIC of the node for one
    ring set); otherwise each rank has an equal part of the network. All-gather and reduce-scatter have no other
    algorithm than the ring, whose latency grows with the ranks. `pattern`: who sends to whom, which decides how much of
    the traffic uses the uplinks of leaf switches.
    """
    ranks = np.asarray(ranks, dtype=float)
    sends = (ranks > 1) & (total > 0)
    if not np.any(sends):
        # Nobody divides experts in most searches, for example.
        return np.zeros(np.broadcast_shapes(*(np.shape(values) for values in (total, calls, ranks, stride))))
    inside = ranks * stride <= network.gpus_per_node
    local = np.minimum(ranks, np.maximum(network.gpus_per_node / np.asarray(stride, dtype=float), 1.0))
    share = _uplink_shares(network, ranks, stride, pattern)
    per_call = total / np.maximum(calls, 1.0)
    ramp = np.maximum(per_call / (per_call + network.half_bytes), 1e-12)
    passes = 2.0 if operation == "all_reduce" else 1.0
    moved = total * (ranks - 1.0) / np.maximum(ranks, 1.0)
    steps = np.where(inside, network.intra_latency_s, network.inter_latency_s) * np.log2(np.maximum(ranks, 2.0))
    hops = calls * np.maximum(steps, np.where(inside, 0.0, _hops(ranks, local, network)))
    seconds = passes * (moved / (_bandwidth(network, local, inside, share.ring) * ramp) + hops)
    if operation == "all_reduce":
        # NCCL takes a tree where a ring's hops would cost more than the tree's lower bandwidth.
        bandwidth = _TREE * _bandwidth(network, local, inside, share.tree)
        seconds = np.minimum(seconds, passes * (moved / (bandwidth * ramp) + calls * steps))
    each = moved / np.maximum(calls, 1.0)
    for curve, mask, size in _measured_curves(network, operation, each, local, inside, share.measured):
        seconds = np.where(mask, calls * _as_measured(size, curve), seconds)
    return np.where(sends, seconds, 0.0)


def _measured_curves(
    network: Network, operation: Operation, each: Array, local: Array, inside: _Mask, share: Array | float
) -> Iterator[tuple[Curve, _Mask, Array]]:
    """Measured times of an operation, each with a mask of the candidates that they hold for, and the bytes of one call
    by which their time is looked up. `share`: fraction of the measured bandwidth that groups have between nodes."""
    is_whole = local >= network.gpus_per_node
    # `local` ranks of a node are adjacent in one ring: it crosses to the next node once for all of them.
    for curves, mask, size in (
        (network.measured, inside, each),
        (network.spanning, ~inside & is_whole, each / share),
        (network.across, ~inside & ~is_whole, each / local / share),
    ):
        if curve := curves.get(operation):
            yield curve, mask, size


def _bandwidth(network: Network, local: Array, inside: _Mask, share: Array | float) -> Array:
    """Bandwidth of a ring on each rank: of the links within a node, or of the part of the node's network that its ranks
    on the node have."""
    return np.where(inside, network.intra, np.minimum(network.inter * local * share, network.intra))


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
