"""Prediction for DDP, and for a plain model on one device: whole parameters, gradients all-reduced in buckets (torch
2.13 `distributed.py`)."""

import numpy as np

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Strategy
from shardtune.tuner.prediction.backends import trained_fractions as trained_part
from shardtune.tuner.prediction.backends.lighter import on_host, over_all_ranks
from shardtune.tuner.prediction.backends.main_gradients import bucket_count
from shardtune.tuner.prediction.backends.record import Lighter, PredictedBackend, Row
from shardtune.tuner.prediction.backends.states import States, tied_gradients
from shardtune.tuner.prediction.backends.zero_states import zero_1_2
from shardtune.tuner.prediction.candidates import DDP, MIB, SINGLE, Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.collectives import Traffic, ring_seconds
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network
from shardtune.tuner.prediction.tensors import tensor_count

_CAST = 3.0
"""Kernel launches per parameter in mixed precision, because a parametrization casts each parameter in forward and
backward."""


def _row(strategy: DdpConfig, world_size: int) -> Row:
    return {
        "backend": DDP,
        "replicate": world_size,
        "ddp_bucket": strategy.bucket_cap_mb * MIB,
        "bucket_view": strategy.gradient_as_bucket_view,
    }


def _states(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, _gloo: bool) -> States:
    """Bytes of DDP's states on one rank: gradients count in the parameters' dtype, and once more in DDP's buckets."""
    if impl.main_gradients:
        return zero_1_2(shape, c.with_values(stage=1, shard=1), d, impl, _gloo)
    zero, count = c.tokens * 0.0, shape.parameters / c.tensor
    trained = count * trained_part.fraction(shape, impl)
    gradients = zero + d.master * trained
    # Each matrix product saves a cast copy of its weight; recomputation makes it again, block by block. Outside the blocks
    # only the head multiplies.
    checkpointed, cast = c.checkpointed(shape.layers), d.compute if d.compute != d.master else 0
    # Frozen weights beside an adapter are in the lower dtype already; those of the user's own code are cast.
    cast_block = shape.block_parameters if shape.adapter is None else shape.trained_block_parameters
    cast_blocks = shape.trained_blocks
    checkpointed = checkpointed * cast_blocks / shape.layers
    copies = zero + cast * (cast_blocks - checkpointed) * cast_block
    recomputed = copies + cast * np.minimum(checkpointed, 1.0) * cast_block
    cast_table = cast if shape.adapter is None else 0
    is_ddp = c.backend == DDP
    # gradient_as_bucket_view=False: Reducer allocates buckets for all gradients when it is built.
    buckets = np.where(is_ddp & (c.bucket_view == 0), d.master * trained, 0.0)
    grown = 0.0 if impl.optimizer_in_backward else 1.0
    # The token table's gradient comes last, dense; a tied table's two contributions exist besides their sum.
    outside = trained_part.outside(shape, impl)
    tables = (shape.tied * tied_gradients(shape, c) * d.master + cast_table) * shape.embedding_parameters * outside
    early = np.where((c.accumulation > 1) | (is_ddp & (c.bucket_view > 0)), gradients, 0.0)
    # While the last two blocks of backward run, their own gradients and those of the layers before them are missing.
    block, before = (
        d.master * trained_part.of_block(shape, impl) * shape.block_parameters,
        shape.outside_parameters - shape.embedding_parameters,
    )
    missing = d.master * outside * before
    return States(
        parameters=zero + trained_part.master_bytes(shape, d, impl) * count + trained_part.scale_bytes(shape),
        masters=zero,
        optimizer=zero + d.moments * trained,
        gradients_early=early * grown,
        gradients_second=early * grown,
        gradients_next=np.maximum(early, gradients - missing - 2.0 * block) * grown,
        gradients_last=np.maximum(early, gradients - missing - block) * grown,
        gradients_late=gradients * grown,
        gathered_loss=copies + cast_table * float(shape.embedding_parameters),
        gathered_backward=recomputed,
        buckets=buckets,
        buckets_loss=buckets,
        gathered_middle=recomputed,
        gathered_last=recomputed,
        buckets_step=buckets,
        buckets_first=buckets,
        unit_gradients=zero,
        end=zero + tables,
        step=zero + (0.0 if impl.fused_optimizer else d.master * trained),
    )


def _host(_shape: ModelShape, c: Candidates, _d: Dtypes, _impl: Implementation, _gloo: bool) -> Array:
    return c.tokens * 0.0


def _traffic(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, network: Network) -> Traffic:
    zero, element = c.tokens * 0.0, d.reduce if impl.main_gradients else d.master
    size = element * shape.parameters * trained_part.fraction(shape, impl) / c.tensor
    calls = bucket_count(shape, c, d) if impl.main_gradients else np.maximum(size / c.ddp_bucket, 1.0)
    all_reduce = ring_seconds(zero + size, calls, c.shard * c.replicate, network, "all_reduce", c.tensor)
    return Traffic(
        forward=zero,
        backward=np.where((c.sync_last > 0) | impl.main_gradients, 0.0, all_reduce),
        last_backward=all_reduce,
        after_step=zero,
        unhidden=0.1 * all_reduce,
        network_bound=np.where(c.ranks > network.gpus_per_node, 1.0, 0.0),
    )


def _launches(shape: ModelShape, c: Candidates, d: Dtypes, _impl: Implementation) -> Array:
    return np.where(c.backend == DDP, _CAST * tensor_count(shape) * (d.compute != d.master), 0.0)


def _accumulation_bytes(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation) -> Array:
    trained = shape.parameters * trained_part.fraction(shape, impl) / c.tensor
    if impl.main_gradients:
        return c.tokens * 0.0 + trained * (d.compute + 2.0 * d.reduce)
    return trained * 3.0 * d.master * (1.0 - 1.0 / c.accumulation)


def _lighter_strategies(_strategy: DdpConfig, cluster: Cluster) -> list[Lighter]:
    return [over_all_ranks(cluster.world_size), *on_host(cluster.world_size)]


def _table_rows(_cluster: Cluster) -> list[Strategy]:
    return [DdpConfig()]


BACKEND = PredictedBackend[DdpConfig](
    codes=(SINGLE, DDP),
    row=_row,
    states=_states,
    host=_host,
    traffic=_traffic,
    launches=_launches,
    step_launches=2.0,
    lighter_strategies=_lighter_strategies,
    table_rows=_table_rows,
    accumulation_bytes=_accumulation_bytes,
)
