"""Parameters, gradients, optimizer state, masters, gathered copies and buckets of one rank, as each backend keeps them.

Sources: ZeRO, Rajbhandari et al. (arXiv:1910.02054, section 3.1 and 5); torch 2.13 `nn/parallel/distributed.py`;
FSDP in `tuner.prediction.footprint.fsdp`, DeepSpeed in `tuner.prediction.footprint.zero`.
"""

import numpy as np

from shardtune.tuner.prediction.footprint.candidates import (
    DDP,
    FSDP1,
    FSDP2,
    NONE,
    SINGLE,
    ZERO,
    Candidates,
    Dtypes,
    Implementation,
)
from shardtune.tuner.prediction.footprint.fsdp import fully_sharded
from shardtune.tuner.prediction.footprint.kept import States
from shardtune.tuner.prediction.footprint.zero import zero_1_2, zero_3
from shardtune.tuner.prediction.model_shape import ModelShape


def states(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, gloo: bool = False) -> States:
    """Bytes per candidate. `gloo`: CPU ranks, whose reduce-scatter works on a clone of its whole input (torch 2.13,
    ProcessGroupGloo; measured: 4 MiB for 4 MiB)."""
    kinds = (
        ((c.backend == SINGLE) | (c.backend == DDP), _replicated),
        ((c.backend == FSDP1) | (c.backend == FSDP2), fully_sharded),
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
