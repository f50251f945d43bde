"""States of FSDP1 and FSDP2: fp32 shards; compute copies gathered per unit; the root unit stays gathered.

Sources: torch 2.13 `distributed/fsdp/_fully_shard` (`_fsdp_collectives.py`, `_fsdp_param_group.py`).
"""

from dataclasses import dataclass

import numpy as np

from shardtune.tuner.prediction.backends import trained_fractions as trained_part
from shardtune.tuner.prediction.backends.states import States, tied_gradients
from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.model_shape import ModelShape


@dataclass(frozen=True)
class _Sizes:
    """Sizes of one rank's part of the model under FSDP: numbers of elements, or bytes of one element where stated.

    One copy of the model is sharded over `Candidates.shard` ranks. With expert parallelism, these ranks divide into smaller
    groups that gather an expert; all of them together hold all experts.
    """

    count: Array
    """Number of elements of all parameters as FSDP gathers them, padding included."""
    trained: Array
    sharded: Array
    """Number of elements of all sharded parameters on one rank."""
    sharded_trained: Array
    """Number of elements on one rank that are sharded and trained (not frozen)."""
    unit: Array
    """Number of elements that one FSDP unit of blocks has when gathered, without the experts of other ranks."""
    unit_trained: Array
    sharded_unit: Array
    """Number of elements of one FSDP unit in the shards of all ranks together, all experts included."""
    sharded_unit_trained: Array
    root: Array
    """Number of elements of the parameters that are in no block (FSDP's root unit)."""
    root_trained: Array
    table: Array
    """Number of elements by which the whole gradient of the token table exceeds this rank's part. Tensor parallelism
    splits the table by vocabulary, but its gradient is first computed whole."""
    tied: Array
    """Number of gradients of the token table that exist at once (see `tied_gradients`)."""
    units: Array
    blocks: Array
    """Number of transformer blocks in one FSDP unit."""
    gathered: int
    """Bytes of one element of a gathered parameter that is not in 4 bits."""
    in_unit: Array
    """Mean bytes of one element of a block's gathered parameters."""
    shards: Array
    """Bytes of this rank's sharded gradients, in the dtype of the master weights."""
    on_device: Array | float
    """Fraction of the gradients that is in device memory. On CPU ranks it is always 1, as host and device memory are
    the same."""
    copies: Array
    """Number of copies of a reduce-scatter's input: 2 with gloo, which works on a clone."""


def _sizes(
    shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, gloo: bool, padding: Array | float
) -> _Sizes:
    extra = c.tokens * 0.0 + padding
    sharded = (float(shape.parameters) + shape.layers * extra) / c.tensor
    elsewhere = _foreign_expert_elements(shape, c)
    count = sharded - shape.layers * elsewhere
    blocks = np.minimum(c.blocks_per_unit, shape.layers)
    sharded_unit = blocks * (shape.block_parameters + extra) / c.tensor
    unit = sharded_unit - blocks * elsewhere
    root = float(shape.outside_parameters) / c.tensor
    whole, of_block = trained_part.fraction(shape, impl), trained_part.of_block(shape, impl)
    outside = trained_part.outside(shape, impl)
    return _Sizes(
        count=count,
        trained=count * whole,
        sharded=sharded,
        sharded_trained=sharded * whole,
        unit=unit,
        sharded_unit=sharded_unit,
        sharded_unit_trained=sharded_unit * of_block,
        unit_trained=unit * of_block,
        root=root,
        root_trained=root * outside,
        table=shape.embedding_parameters * outside * (1.0 - 1.0 / c.tensor),
        tied=tied_gradients(shape, c),
        units=np.ceil(shape.layers / c.blocks_per_unit),
        blocks=blocks,
        gathered=d.compute,
        in_unit=trained_part.gathered_block_bytes(shape, c, d),
        shards=d.master * sharded * whole / c.shard,
        on_device=1.0 if gloo else 1.0 - c.offload_parameters,
        copies=1.0 + (np.where(c.shard > 1, 1.0, 0.0) if gloo else c.tokens * 0.0),
    )


def _foreign_expert_elements(shape: ModelShape, c: Candidates) -> Array:
    """Number of elements of one block's experts that belong to other ranks; this rank never gathers them."""
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
    """Bytes of FSDP's states on one rank, at several times in a step.

    `padding`: elements that a block's gathered buffer has beyond its parameters. `root_waits`: whether the
    reduce-scatter input of the root unit is kept until the next micro batch reduces a unit. `at_once`: whether a unit's
    buffers are freed before the next block runs, as FSDP1 does.
    """
    s = _sizes(shape, c, d, impl, gloo, padding)
    whole = (
        s.gathered
        * s.blocks
        * (shape.block_parameters / c.tensor - _foreign_expert_elements(shape, c))
        * trained_part.of_block(shape, impl)
    )
    return States(
        parameters=trained_part.master_bytes(shape, d, impl) * s.sharded / c.shard * (1.0 - c.offload_parameters)
        + trained_part.scale_bytes(shape),
        masters=c.tokens * 0.0,
        optimizer=d.moments * s.sharded_trained / c.shard * (1.0 - c.offload_optimizer),
        **_gradient_bytes(c, d, s),
        **_gathered_bytes(c, s),
        **_reduction_bytes(shape, c, d, s, root_waits, at_once),
        # FSDP1's parameters are views of a flat one: their gradients stand beside the flat gradient that they make up.
        unit_gradients=whole * (2.0 if at_once else 1.0),
        reduced_unit=_reduced_unit_bytes(c, d, s, whole) if at_once else c.tokens * 0.0,
        freed_late=d.reduce * _reduced_units(shape, c, s) if at_once else c.tokens * 0.0,
        step=s.shards * s.root_trained / s.sharded_trained * s.on_device
        + np.where(c.offload_optimizer > 0, 0.0, 0.0 if impl.fused_optimizer else s.shards),
    )


def _gradient_bytes(c: Candidates, d: Dtypes, s: _Sizes) -> dict[str, Array]:
    """Bytes of the trained parameters' gradients at several moments of a step, from the beginning of backward to its
    end."""
    accumulates = c.accumulation > 1
    unsharded = np.where(accumulates & (c.sync_last > 0), d.reduce * s.trained, 0.0)
    # Gradients reduced within the shard group replace sharded gradients until the last micro batch makes these, unit by
    # unit, and frees their parts (torch 2.13, `foreach_reduce` returns before).
    within = accumulates & (c.sync_shard_only > 0)
    partial = np.where(within, d.reduce * s.sharded_trained / c.shard, 0.0)
    early = np.where(accumulates & (c.sync_last == 0) & ~within, s.shards, 0.0) * s.on_device + unsharded + partial
    # HSDP: each unit holds its last all-reduced gradients (`_all_reduce_state`) until the step's last backward ends; from the
    # second micro batch on they are not the accumulated ones any more.
    reduced_twice = (c.replicate > 1) & accumulates & (c.sync_last == 0) & (c.sync_shard_only == 0)
    all_reduced = np.where(reduced_twice, d.reduce * s.sharded_trained / c.shard, 0.0)
    early = early + np.where(c.accumulation > 2, all_reduced, 0.0)
    before_last_two = np.maximum(1.0 - (s.root_trained + 2 * s.sharded_unit_trained) / s.sharded_trained, 0.0)
    return {
        "gradients_early": early,
        "gradients_second": early + np.where(early > 0, 0.0, d.master * s.sharded_unit_trained / c.shard * s.on_device),
        "gradients_next": np.maximum(early, s.shards * s.on_device * before_last_two),
        "gradients_last": np.maximum(
            early,
            s.shards * s.on_device * (1.0 - (s.root_trained + s.sharded_unit_trained) / s.sharded_trained)
            + all_reduced,
        ),
        # The root's own gradients are still whole: they are in `end`.
        "gradients_late": np.where(
            unsharded > 0, unsharded, s.shards * s.on_device * (1.0 - s.root_trained / s.sharded_trained)
        )
        + partial * s.root_trained / s.sharded_trained
        + all_reduced,
    }


def _reduced_unit_bytes(c: Candidates, d: Dtypes, s: _Sizes, whole: Array) -> Array:
    """Additional bytes while FSDP1 reduces the gradients of a unit, beyond what the block keeps. `whole`: bytes of the
    unit's gradients."""
    # FSDP1 frees the unit's parameters, casts its gradients if the dtypes differ, and reduces them into a new shard (torch
    # 2.13, `_post_backward_hook`). Nothing refers to the cast copy when the hook ends.
    inputs = s.copies - (1.0 if d.reduce == s.gathered else 0.0)
    shard = np.where(c.shard > 1, d.reduce * s.unit_trained / c.shard, 0.0)
    freed = np.where(c.regather < 2, 0.0, s.in_unit * s.unit)
    return whole + d.reduce * s.unit_trained * inputs + shard - freed


def _reduced_units(shape: ModelShape, c: Candidates, s: _Sizes) -> Array:
    """Number of elements in a reduce-scatter that is still running while another FSDP unit computes."""
    # Backward begins with the last unit, which holds the left-over blocks. Of two units it alone is reduced beside
    # another; a single unit is reduced when nothing else runs any more.
    left_over = shape.layers - c.blocks_per_unit * (s.units - 1)
    reduced: Array = s.unit_trained * np.where(s.units == 1, 0.0, np.where(s.units == 2, left_over / s.blocks, 1.0))
    return reduced


def _gathered_bytes(c: Candidates, s: _Sizes) -> dict[str, Array]:
    """Bytes of gathered parameters in the compute dtype: the root unit's, those kept after forward, one unit in use,
    and one or more prefetched units."""
    keeps_whole, everything = c.regather < 2, s.gathered * s.root + s.in_unit * (s.count - s.root)
    kept = np.where(c.regather < c.shard, s.in_unit * (s.count - s.root) / c.regather, 0.0)
    is_kept = keeps_whole & (c.accumulation > 1)
    resident, arriving = s.gathered * s.root + kept, s.in_unit * s.unit
    ahead = np.maximum(c.backward_prefetch, 1.0)
    return {
        # The last all-gather's output is still held when the loss is computed; kept parameters are gathered once a step.
        "gathered_loss": np.where(keeps_whole, everything, resident) + np.where(is_kept, 0.0, arriving),
        "gathered_backward": np.where(keeps_whole, everything, resident + arriving * (1.0 + ahead * (s.units > 1))),
        "gathered_middle": np.where(keeps_whole, everything, resident + arriving * (1.0 + ahead * (s.units > 2))),
        "gathered_last": np.where(keeps_whole, everything, resident + arriving),
    }


def _reduction_bytes(
    shape: ModelShape, c: Candidates, d: Dtypes, s: _Sizes, root_waits: bool, at_once: bool
) -> dict[str, Array]:
    """Bytes of the inputs of reduce-scatters. The input of one unit is kept until the next unit's reduce-scatter
    begins; the root unit's gradients are kept until the end of backward."""
    head = s.root_trained if shape.tied else s.root_trained / 2
    waits = (c.accumulation > 1) & (c.sync_last == 0) & root_waits
    lingering = np.where(waits, d.reduce * s.root_trained, 0.0)
    return {
        "buckets": np.where(at_once, 0.0, d.reduce * _reduced_units(shape, c, s) * s.copies) + s.gathered * head,
        "buckets_loss": lingering,
        "buckets_step": c.tokens * 0.0,
        "buckets_first": lingering + s.gathered * head,
        # The root is reduced last, after its parameters are freed: whole gradients and the reduce-scatter's input. Before
        # that, a tied table's two gradients stand beside their sum.
        "end": d.reduce * s.table
        + np.maximum(
            s.gathered * s.root_trained + d.reduce * s.root_trained * s.copies + _reduced_root_bytes(c, d, s, at_once),
            s.gathered * (s.root + s.tied * s.root_trained) + d.reduce * s.unit_trained * s.copies,
        ),
    }


def _reduced_root_bytes(c: Candidates, d: Dtypes, s: _Sizes, at_once: bool) -> Array:
    """Additional bytes of shards while the root unit's gradients are reduced: the accumulated shard, to which the new one
    is added, and FSDP1's new one."""
    # FSDP2 has freed the whole gradients when it makes the new shard.
    new = np.where((c.shard > 1) & at_once, d.reduce * s.root_trained / c.shard, 0.0)
    is_added = (c.accumulation > 1) & (c.sync_last == 0) & (c.sync_shard_only == 0)
    return new + np.where(is_added, d.master * s.root_trained / c.shard, 0.0) * s.on_device
