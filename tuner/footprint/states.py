"""Parameters, gradients, optimizer state, masters, gathered copies and buckets of one rank, as each backend keeps them.

Sources: ZeRO, Rajbhandari et al. (arXiv:1910.02054, section 3.1 and 5); torch 2.13 `distributed/fsdp/_fully_shard`
(`_fsdp_collectives.py`, `_fsdp_param_group.py`) and `nn/parallel/distributed.py`; ZeRO in `tuner.footprint.zero`.
"""

import numpy as np

from tuner.footprint.candidates import DDP, FSDP1, FSDP2, NONE, SINGLE, ZERO, Array, Candidates, Dtypes, Implementation
from tuner.footprint.kept import States
from tuner.footprint.zero import zero_1_2, zero_3
from tuner.model_shape import ModelShape


def states(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, gloo: bool = False) -> States:
    """Bytes per candidate. `gloo`: CPU ranks, whose reduce-scatter works on a clone of its whole input (torch 2.13,
    ProcessGroupGloo; measured: 4 MiB for 4 MiB)."""
    kinds = (
        ((c.backend == SINGLE) | (c.backend == DDP), _replicated),
        ((c.backend == FSDP1) | (c.backend == FSDP2), _fully_sharded),
        ((c.backend == ZERO) & (c.stage < 3), zero_1_2),
        ((c.backend == ZERO) & (c.stage == 3), zero_3),
    )
    present = [(mask, make) for mask, make in kinds if np.any(mask)]
    parts = [(mask, make(shape, c, dtypes, impl, gloo)) for mask, make in present]
    if len(parts) == 1:
        return parts[0][1]
    return States(
        **{
            name: np.select([mask for mask, _ in parts], [getattr(part, name) for _, part in parts])
            for name in States.__dataclass_fields__
        }
    )


def _replicated(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, _gloo: bool) -> States:
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
    # The token table's gradient comes last, dense; a tied one's two contributions stand beside their sum.
    cast = d.compute if d.compute != d.master else 0
    tables = ((3.0 if shape.tied else 0.0) * d.master + cast) * shape.embedding_parameters * impl.trainable
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
        end=zero + tables,
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


def _fully_sharded(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, gloo: bool) -> States:
    """FSDP1 and FSDP2: fp32 shards; compute copies gathered per unit; the root unit stays gathered."""
    zero, plain = c.tokens * 0.0, float(shape.parameters)
    extra = (expert_padding(shape, c) - 1.0) * shape.experts * shape.mlp_matrix_parameters
    count = plain + shape.layers * extra
    trained = count * impl.trainable
    on_device = 1.0 - c.offload_parameters
    # On CPU ranks gradients that go to the host are counted where they arise.
    gradients_here = 1.0 if gloo else on_device
    blocks = np.minimum(c.blocks_per_unit, shape.layers)
    unit = blocks * (shape.block_parameters + extra)
    root = float(shape.outside_parameters)
    size = d.master if impl.autocast else d.compute  # autocast does not tell FSDP to cast before it gathers
    shards = d.master * trained / c.shard
    kept = np.where(c.regather < c.shard, size * (count - root) / c.regather, 0.0)
    arriving = size * unit
    accumulates = c.accumulation > 1
    clone = np.where(c.shard > 1, 1.0, 0.0) if gloo else zero
    unsharded = np.where(accumulates & (c.sync_last > 0), d.reduce * trained, 0.0)
    partial = np.where(accumulates & (c.sync_shard_only > 0), d.reduce * trained / c.shard, 0.0)
    # Reduce-scatter's input lives until the next unit's begins; the root's gradients wait for the end of backward.
    unit_trained, root_trained = unit * impl.trainable, root * impl.trainable
    # Backward begins with the last unit, which holds what is left over; of two units it alone is reduced beside another,
    # and a single one when nothing else runs any more.
    units = np.ceil(shape.layers / c.blocks_per_unit)
    left_over = shape.layers - c.blocks_per_unit * (units - 1)
    reduced = unit_trained * np.where(units == 1, 0.0, np.where(units == 2, left_over / blocks, 1.0))
    head = root_trained if shape.tied else root_trained / 2
    early = np.where(accumulates & (c.sync_last == 0), shards, 0.0) * gradients_here + unsharded + partial
    # `set_is_last_backward(False)` keeps the root's reduce-scatter input until the next micro batch reduces a unit.
    lingering = np.where(accumulates & (c.sync_last == 0) & (c.backend == FSDP2), d.reduce * root_trained, 0.0)
    # HSDP: each unit holds its last all-reduced gradients (`_all_reduce_state`) until the step's last backward ends; from the
    # second micro batch on they are not the accumulated ones any more.
    reduced_twice = (c.replicate > 1) & accumulates & (c.sync_last == 0) & (c.sync_shard_only == 0)
    again = np.where(reduced_twice, d.reduce * trained / c.shard, 0.0)
    early = early + np.where(c.accumulation > 2, again, 0.0)
    whole = c.regather < 2
    held = size * root + kept
    ahead = np.maximum(c.backward_prefetch, 1.0)
    return States(
        parameters=d.master * count / c.shard * on_device,
        masters=zero,
        optimizer=d.moments * trained / c.shard * (1.0 - c.offload_optimizer),
        gradients_early=early,
        gradients_second=early + np.where(early > 0, 0.0, d.master * unit_trained / c.shard * gradients_here),
        gradients_next=np.maximum(early, shards * gradients_here * np.maximum(1.0 - (root + 2 * unit) / count, 0.0)),
        gradients_last=np.maximum(early, shards * gradients_here * (1.0 - (root + unit) / count) + again),
        # The root's own gradients are still whole: they are in `end`.
        gradients_late=np.where(unsharded > 0, unsharded, shards * gradients_here * (1.0 - root / count))
        + partial
        + again,
        # The last all-gather's output is still held when the loss is computed; kept parameters are gathered once a step.
        gathered_loss=np.where(whole, size * count, held) + np.where(whole & accumulates, 0.0, arriving),
        # One unit in use, one arriving.
        gathered_backward=np.where(whole, size * count, held + arriving * (1.0 + ahead * (units > 1))),
        gathered_middle=np.where(whole, size * count, held + arriving * (1.0 + ahead * (units > 2))),
        gathered_last=np.where(whole, size * count, held + arriving),
        buckets=d.reduce * reduced * (1.0 + clone) + size * head,
        buckets_loss=lingering,
        buckets_step=zero,
        buckets_first=lingering + size * head,
        unit_gradients=size * blocks * (shape.block_parameters * impl.trainable),
        # The root is reduced last, after its parameters are freed: whole gradients and the reduce-scatter's input. Before
        # that, a tied table's two gradients stand beside their sum.
        end=np.maximum(
            size * root_trained + d.reduce * root_trained * (1.0 + clone),
            size * root + (3.0 if shape.tied else 1.0) * size * root_trained + d.reduce * unit_trained * (1.0 + clone),
        )
        + zero,
        step=shards * root / count * gradients_here
        + np.where(c.offload_optimizer > 0, 0.0, 0.0 if impl.fused_optimizer else shards),
    )
