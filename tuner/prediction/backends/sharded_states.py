"""What FSDP1 and FSDP2 keep and send: fp32 shards; compute copies gathered per unit; the root unit stays gathered.

Sources: torch 2.13 `distributed/fsdp/_fully_shard` (`_fsdp_collectives.py`, `_fsdp_param_group.py`).
"""

from dataclasses import dataclass

import numpy as np

from shardtune.tuner.prediction.backends.states import States
from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.collectives import Operation, Traffic, ring_seconds
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network


@dataclass(frozen=True)
class _Sizes:
    """Elements of this rank's part of the model, and bytes of one element where it says so.

    Where ranks divide experts, less is gathered than is sharded over `Candidates.shard` ranks: these hold experts between them.
    """

    count: Array
    """All parameters as they are gathered, padding included."""
    trained: Array
    held: Array
    """All that are sharded, and of these what is trained."""
    held_trained: Array
    unit: Array
    """One unit of blocks."""
    unit_trained: Array
    held_unit: Array
    """As it is sharded."""
    root: Array
    """What is in no block."""
    root_trained: Array
    table: Array
    """The token table's gradient, beyond this rank's part: where it is split by vocabulary, its gradient arises whole."""
    tied: float
    """Gradients of the token table that stand beside each other: a tied one has two and their sum."""
    units: Array
    blocks: Array
    """Of one unit."""
    gathered: int
    """Bytes of one gathered element."""
    shards: Array
    """Bytes of this rank's gradients, in the masters' dtype."""
    here: Array | float
    """Share of them on the device; on CPU ranks, gradients that go to the host are counted where they arise."""
    copies: Array
    """Of a reduce-scatter's input: 2 with gloo, which works on a clone."""


def _sizes(
    shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, gloo: bool, padding: Array | float
) -> _Sizes:
    extra = c.tokens * 0.0 + padding
    held = (float(shape.parameters) + shape.layers * extra) / c.tensor
    elsewhere = _elsewhere(shape, c)
    count = held - shape.layers * elsewhere
    blocks = np.minimum(c.blocks_per_unit, shape.layers)
    held_unit = blocks * (shape.block_parameters + extra) / c.tensor
    unit = held_unit - blocks * elsewhere
    root = float(shape.outside_parameters) / c.tensor
    return _Sizes(
        count=count,
        trained=count * impl.trainable,
        held=held,
        held_trained=held * impl.trainable,
        unit=unit,
        held_unit=held_unit,
        unit_trained=unit * impl.trainable,
        root=root,
        root_trained=root * impl.trainable,
        table=shape.embedding_parameters * impl.trainable * (1.0 - 1.0 / c.tensor),
        tied=3.0 if shape.tied else 1.0,
        units=np.ceil(shape.layers / c.blocks_per_unit),
        blocks=blocks,
        gathered=d.compute,
        shards=d.master * held * impl.trainable / c.shard,
        here=1.0 if gloo else 1.0 - c.offload_parameters,
        copies=1.0 + (np.where(c.shard > 1, 1.0, 0.0) if gloo else c.tokens * 0.0),
    )


def _elsewhere(shape: ModelShape, c: Candidates) -> Array:
    """Elements of one block's experts that other ranks have, so that this one never gathers them."""
    return shape.expert_parameters * (1.0 - 1.0 / c.experts)


def fully_sharded(
    shape: ModelShape,
    c: Candidates,
    d: Dtypes,
    impl: Implementation,
    gloo: bool,
    padding: Array | float = 0.0,
    root_waits: bool = False,
    at_once: bool = False,
) -> States:
    """What is kept, moment by moment.

    `padding`: elements that a block's gathered buffer has beyond its parameters. `root_waits`: the root's reduce-scatter
    input is kept until the next micro batch reduces a unit. `at_once`: a unit's reduction ends before the next block runs.
    """
    s = _sizes(shape, c, d, impl, gloo, padding)
    return States(
        parameters=d.master * s.held / c.shard * (1.0 - c.offload_parameters),
        masters=c.tokens * 0.0,
        optimizer=d.moments * s.held_trained / c.shard * (1.0 - c.offload_optimizer),
        **_gradients(c, d, s),
        **_gathered(c, s),
        **_reducing(shape, c, d, s, root_waits, at_once),
        unit_gradients=s.gathered
        * s.blocks
        * (shape.block_parameters / c.tensor - _elsewhere(shape, c))
        * impl.trainable
        + (d.reduce * s.unit_trained * s.copies if at_once else 0.0),
        step=s.shards * s.root / s.held * s.here
        + np.where(c.offload_optimizer > 0, 0.0, 0.0 if impl.fused_optimizer else s.shards),
    )


def _gradients(c: Candidates, d: Dtypes, s: _Sizes) -> dict[str, Array]:
    """Gradients of the trained parameters, from the beginning of backward to its end."""
    accumulates = c.accumulation > 1
    unsharded = np.where(accumulates & (c.sync_last > 0), d.reduce * s.trained, 0.0)
    # What is reduced within the shard group takes the place of sharded gradients until the last micro batch makes them, unit by
    # unit, and frees its parts (torch 2.13, `foreach_reduce` returns before).
    within = accumulates & (c.sync_shard_only > 0)
    partial = np.where(within, d.reduce * s.held_trained / c.shard, 0.0)
    early = np.where(accumulates & (c.sync_last == 0) & ~within, s.shards, 0.0) * s.here + unsharded + partial
    # HSDP: each unit holds its last all-reduced gradients (`_all_reduce_state`) until the step's last backward ends; from the
    # second micro batch on they are not the accumulated ones any more.
    reduced_twice = (c.replicate > 1) & accumulates & (c.sync_last == 0) & (c.sync_shard_only == 0)
    again = np.where(reduced_twice, d.reduce * s.held_trained / c.shard, 0.0)
    early = early + np.where(c.accumulation > 2, again, 0.0)
    before_last_two = np.maximum(1.0 - (s.root + 2 * s.held_unit) / s.held, 0.0)
    return {
        "gradients_early": early,
        "gradients_second": early
        + np.where(early > 0, 0.0, d.master * s.held_unit * s.held_trained / s.held / c.shard * s.here),
        "gradients_next": np.maximum(early, s.shards * s.here * before_last_two),
        "gradients_last": np.maximum(early, s.shards * s.here * (1.0 - (s.root + s.held_unit) / s.held) + again),
        # The root's own gradients are still whole: they are in `end`.
        "gradients_late": np.where(unsharded > 0, unsharded, s.shards * s.here * (1.0 - s.root / s.held))
        + partial * s.root / s.held
        + again,
    }


def _gathered(c: Candidates, s: _Sizes) -> dict[str, Array]:
    """Compute copies of parameters: the root's, what is kept after forward, one unit in use, one or more arriving."""
    whole, everything = c.regather < 2, s.gathered * s.count
    kept = np.where(c.regather < c.shard, s.gathered * (s.count - s.root) / c.regather, 0.0)
    held, arriving = s.gathered * s.root + kept, s.gathered * s.unit
    ahead = np.maximum(c.backward_prefetch, 1.0)
    return {
        # The last all-gather's output is still held when the loss is computed; kept parameters are gathered once a step.
        "gathered_loss": np.where(whole, everything, held) + np.where(whole & (c.accumulation > 1), 0.0, arriving),
        "gathered_backward": np.where(whole, everything, held + arriving * (1.0 + ahead * (s.units > 1))),
        "gathered_middle": np.where(whole, everything, held + arriving * (1.0 + ahead * (s.units > 2))),
        "gathered_last": np.where(whole, everything, held + arriving),
    }


def _reducing(
    shape: ModelShape, c: Candidates, d: Dtypes, s: _Sizes, root_waits: bool, at_once: bool
) -> dict[str, Array]:
    """Inputs of reduce-scatters: one lives until the next unit's begins; the root's gradients wait for the end."""
    # Backward begins with the last unit, which holds what is left over; of two units it alone is reduced beside another,
    # and a single one when nothing else runs any more.
    left_over = shape.layers - c.blocks_per_unit * (s.units - 1)
    reduced = s.unit_trained * np.where(s.units == 1, 0.0, np.where(s.units == 2, left_over / s.blocks, 1.0))
    head = s.root_trained if shape.tied else s.root_trained / 2
    waits = (c.accumulation > 1) & (c.sync_last == 0) & root_waits
    lingering = np.where(waits, d.reduce * s.root_trained, 0.0)
    return {
        "buckets": np.where(at_once, 0.0, d.reduce * reduced * s.copies) + s.gathered * head,
        "buckets_loss": lingering,
        "buckets_step": c.tokens * 0.0,
        "buckets_first": lingering + s.gathered * head,
        # The root is reduced last, after its parameters are freed: whole gradients and the reduce-scatter's input. Before
        # that, a tied table's two gradients stand beside their sum.
        "end": d.reduce * s.table
        + np.maximum(
            s.gathered * s.root_trained + d.reduce * s.root_trained * s.copies,
            s.gathered * (s.root + s.tied * s.root_trained) + d.reduce * s.unit_trained * s.copies,
        ),
    }


def host_bytes(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, gloo: bool) -> Array:
    """Masters, moments and gradients: FSDP's fp32 shards are its masters."""
    state = d.moments + d.master + (0.0 if gloo else d.reduce)
    total: Array = state * shape.parameters * impl.trainable / c.holders * c.offload_optimizer
    return total


def traffic(
    shape: ModelShape,
    c: Candidates,
    d: Dtypes,
    impl: Implementation,
    network: Network,
    padding: Array | float = 0.0,
    keeps_unsynced: bool = False,
) -> Traffic:
    """`padding` as above. `keeps_unsynced`: under `no_sync`, parameters that are kept after forward stay over micro batches."""
    zero, units = c.tokens * 0.0, np.ceil(shape.layers / c.blocks_per_unit) + 1.0
    held = (shape.parameters + padding * shape.layers) / c.tensor
    # Divided experts are units of their own, sharded over fewer ranks, which are that much farther apart.
    own = np.where(c.experts > 1, shape.layers * shape.expert_parameters, 0.0)
    fewer = c.shard / c.experts
    rest, part, layers = held - own, own / c.experts, float(shape.layers)

    def reduced(operation: Operation) -> Array:
        scattered = ring_seconds(zero + d.reduce * impl.trainable * rest, units, c.shard, network, operation, c.tensor)
        return scattered + ring_seconds(
            d.reduce * impl.trainable * part, zero + layers, fewer, network, operation, c.experts
        )

    def gathered(ranks: Array) -> Array:
        around = ring_seconds(zero + d.compute * rest, units, np.minimum(ranks, c.shard), network, stride=c.tensor)
        return around + ring_seconds(d.compute * part, zero + layers, fewer, network, stride=c.experts)

    gather, again, scatter = gathered(c.shard), gathered(c.regather), reduced("reduce_scatter")
    sent = d.reduce * held * impl.trainable / c.shard
    across = ring_seconds(sent, units, c.replicate, network, "all_reduce", c.holders)
    # Parameters that are kept after forward are freed after backward all the same (torch 2.13, `post_backward`), except
    # by FSDP1 under `no_sync` (`_should_free_in_backward`).
    whole = c.regather < 2
    once = whole & (c.sync_last > 0) & keeps_unsynced
    forward = gather / np.where(once, np.maximum(c.accumulation, 1.0), 1.0)
    back = np.where(whole, 0.0, again)
    every = np.where(c.sync_last > 0, 0.0, scatter + np.where(c.sync_shard_only > 0, 0.0, across))
    return Traffic(
        forward=forward,
        backward=back + every,
        last_backward=back + scatter + across,
        after_step=zero,
        unhidden=(forward + scatter + across) / units,
        network_bound=np.where(c.holders > network.gpus_per_node, 1.0, 0.0),
    )
