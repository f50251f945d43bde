"""Traffic of FSDP1 and FSDP2: gathers and reductions of units.

Sources: torch 2.13 `distributed/fsdp/_fully_shard` (`_fsdp_collectives.py`, `_fsdp_param_group.py`).
"""

import numpy as np

from shardtune.tuner.prediction.backends import trained_fractions as trained_part
from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.collectives import Operation, Traffic, ring_seconds
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network

_SCALE_BYTES = 4.0
"""Bytes of one weight's largest element, in float32."""


def traffic(
    shape: ModelShape,
    c: Candidates,
    d: Dtypes,
    impl: Implementation,
    network: Network,
    padding: Array | float = 0.0,
    keeps_unsynced: bool = False,
) -> Traffic:
    """Seconds of FSDP's communication on one rank, by pass of the step.

    `padding`: elements that a block's gathered buffer has beyond its parameters. `keeps_unsynced`: whether parameters
    that stay gathered after forward also stay gathered between micro batches under `no_sync`.
    """
    zero, units = c.tokens * 0.0, np.ceil(shape.layers / c.blocks_per_unit) + 1.0
    total = (shape.parameters + padding * shape.layers) / c.tensor
    # Divided experts are units of their own, sharded over fewer ranks, which are that much farther apart.
    expert_elements = np.where(c.experts > 1, shape.layers * shape.expert_parameters, 0.0)
    fewer = c.shard / c.experts
    dense, experts_per_rank, layers = total - expert_elements, expert_elements / c.experts, float(shape.layers)

    trained = trained_part.fraction(shape, impl)

    def reduced(operation: Operation) -> Array:
        scattered = ring_seconds(zero + d.reduce * trained * dense, units, c.shard, network, operation, c.tensor)
        return scattered + ring_seconds(
            d.reduce * trained * experts_per_rank, zero + layers, fewer, network, operation, c.experts
        )

    def gathered(ranks: Array) -> Array:
        around = ring_seconds(
            zero + trained_part.gathered_bytes(shape, c, d) * dense,
            units,
            np.minimum(ranks, c.shard),
            network,
            stride=c.tensor,
        )
        return around + ring_seconds(d.compute * experts_per_rank, zero + layers, fewer, network, stride=c.experts)

    gather, regather, scatter = gathered(c.shard), gathered(c.regather), reduced("reduce_scatter")
    sent = d.reduce * total * trained / c.shard
    across = ring_seconds(sent, units, c.replicate, network, "all_reduce", c.holders)
    # Parameters that are kept after forward are freed after backward all the same (torch 2.13, `post_backward`), except
    # by FSDP1 under `no_sync` (`_should_free_in_backward`).
    keeps_whole = c.regather < 2
    once = keeps_whole & (c.sync_last > 0) & keeps_unsynced
    forward = gather / np.where(once, np.maximum(c.accumulation, 1.0), 1.0)
    back = np.where(keeps_whole, 0.0, regather * trained_part.depth(shape))
    every = np.where(c.sync_last > 0, 0.0, scatter + np.where(c.sync_shard_only > 0, 0.0, across))
    return Traffic(
        forward=forward,
        backward=back + every,
        last_backward=back + scatter + across,
        after_step=np.where(c.float8_gather > 0, _scales(shape, c, network), zero),
        unhidden=(forward + scatter + across) / units,
        network_bound=np.where(c.holders > network.gpus_per_node, 1.0, 0.0),
    )


def _scales(shape: ModelShape, c: Candidates, network: Network) -> Array:
    """Seconds of the all-reduce that finds the largest element of each float8 weight, once a step."""
    largest = _SCALE_BYTES * shape.layers * len(shape.block_matrices)
    return ring_seconds(c.tokens * 0.0 + largest, c.tokens * 0.0 + 1.0, c.shard, network, "all_reduce", c.tensor)
