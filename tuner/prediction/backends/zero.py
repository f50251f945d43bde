"""Prediction for DeepSpeed ZeRO-1/2/3 (0.19.8): the fields that a configuration sets, and the traffic; the states are
in `zero_states`."""

import numpy as np

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Offload, Strategy, ZeroConfig
from shardtune.tuner.prediction.backends import host_states
from shardtune.tuner.prediction.backends import trained_fractions as trained_part
from shardtune.tuner.prediction.backends.lighter import OPTIMIZER_ON_HOST
from shardtune.tuner.prediction.backends.record import Lighter, PredictedBackend, Row
from shardtune.tuner.prediction.backends.states import States
from shardtune.tuner.prediction.backends.zero_states import is_bf16_optimizer, stays_gathered, zero_1_2, zero_3
from shardtune.tuner.prediction.candidates import ZERO, Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.collectives import Traffic, ring_seconds
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network
from shardtune.tuner.prediction.tensors import buckets_filled, modules_above, tensor_count

_BF16_OPTIMIZER_BUFFER = 5e8
"""Number of elements that DeepSpeed's engine reduces in one call where it uses its BF16_Optimizer
(`buffered_allreduce_fallback`)."""
_TENSOR = {1: 1.5, 2: 5.0, 3: 38.0}
"""Kernel launches per parameter that ZeRO's gradient hooks cost in host time, by stage; stage 3's coordinator also
fetches and releases every module in Python."""


def _row(strategy: ZeroConfig, world_size: int) -> Row:
    optimizer = strategy.offload_optimizer
    offloaded_fraction = 0.0 if optimizer is None else optimizer.ratio if strategy.stage == 3 else 1.0
    return {
        "backend": ZERO,
        "stage": strategy.stage,
        "shard": world_size,
        "regather": world_size,
        "reduce_bucket": strategy.reduce_bucket_size,
        "gather_bucket": strategy.allgather_bucket_size,
        "double_buffer": strategy.overlap_comm,
        "contiguous": strategy.contiguous_gradients,
        "prefetch_bucket": strategy.stage3_prefetch_bucket_size,
        "persistence": strategy.stage3_param_persistence_threshold,
        "reuse": strategy.stage3_max_reuse_distance,
        "max_live": strategy.stage3_max_live_parameters,
        "secondary": strategy.zero_hpz_partition_size,
        "offload_optimizer": offloaded_fraction,
        "offload_parameters": strategy.offload_param is not None,
        "pinned_optimizer": optimizer is not None and optimizer.pin_memory,
        "pinned_parameters": strategy.offload_param is not None and strategy.offload_param.pin_memory,
        "sub_group": strategy.sub_group_size,
    }


def _states(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, gloo: bool) -> States:
    early, late = zero_1_2(shape, c, d, impl, gloo), zero_3(shape, c, d, impl, gloo)
    is_3 = c.stage == 3
    return States(**{name: np.where(is_3, value, vars(early)[name]) for name, value in vars(late).items()})


def _traffic(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, network: Network) -> Traffic:
    zero, trained, is_3 = c.tokens * 0.0, shape.parameters * trained_part.fraction(shape, impl) / c.tensor, c.stage == 3
    units = shape.layers + 1.0
    filled = buckets_filled(shape, c.reduce_bucket)
    forward, backward_gathers = _gathers(shape, c, d, network, units)
    scatter = ring_seconds(zero + d.reduce * trained, filled, c.shard, network, "reduce_scatter")
    # A bucket is cast to the reduction's dtype first (`communication_data_type`). BF16_Optimizer has buffers of its own.
    calls = np.where(is_bf16_optimizer(c, d), np.ceil(trained / _BF16_OPTIMIZER_BUFFER), filled)
    all_reduce = ring_seconds(zero + d.reduce * trained, calls, c.shard, network, "all_reduce", c.tensor)
    if impl.main_gradients:
        all_reduce = ring_seconds(
            zero + d.reduce * trained, zero + tensor_count(shape), c.shard, network, "reduce_scatter", c.tensor
        )
    # Copies of the shard group add up each rank's part of the gradients once a step.
    between_copies = ring_seconds(
        d.reduce * trained / c.shard, np.maximum(filled / c.shard, 1.0), c.replicate, network, "all_reduce",
        c.shard * c.tensor,
    )  # fmt: skip
    return Traffic(
        forward=np.where(is_3, forward, 0.0),
        backward=np.where(is_3, backward_gathers + scatter, all_reduce * (c.stage == 2)),
        last_backward=np.where(is_3, backward_gathers + scatter, all_reduce) + between_copies,
        after_step=_after_step(shape, c, d, impl, network),
        unhidden=np.where(is_3, (forward + scatter) / units, 0.0),
        network_bound=np.where(c.shard * c.replicate > network.gpus_per_node, 1.0, 0.0),
    )


def _gathers(shape: ModelShape, c: Candidates, d: Dtypes, network: Network, units: float) -> tuple[Array, Array]:
    """Seconds of ZeRO-3's all-gathers in one micro batch, as a pair: in forward and in backward."""
    persistent, reused = stays_gathered(shape, c)
    count = shape.parameters - persistent
    backward_count = count - reused
    # Modules are gathered one by one, but together as far as the prefetch bucket reaches.
    modules = modules_above(shape, c.persistence)
    calls = np.clip(count / np.maximum(c.prefetch_bucket, 1.0), np.minimum(units, modules), modules)
    group = np.where(c.secondary > 1, c.secondary, np.minimum(c.regather, c.shard))
    forward = ring_seconds(d.compute * count, calls, c.shard, network)
    backward = ring_seconds(d.compute * backward_count, calls * backward_count / np.maximum(count, 1.0), group, network)
    # Each slice of an MLP gathers again what is not kept until the next one.
    is_released = (c.reuse < shape.mlp_matrix_parameters) & (shape.hidden * shape.ffn > c.persistence)
    again = is_released * (c.mlp_slices - 1.0) * shape.layers
    matrices = float(shape.mlp_matrix_parameters)
    regathered = again * ring_seconds(d.compute * matrices + c.tokens * 0.0, 3.0 + c.tokens * 0.0, c.shard, network)
    return forward + regathered, backward + regathered


def _after_step(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, network: Network) -> Array:
    """Seconds of communication after ZeRO's optimizer step: stages 1 and 2 gather the updated weights, stage 3 its
    persistent parameters."""
    sent = 1.0 if shape.adapter is None else trained_part.fraction(shape, impl)
    count = shape.parameters * sent / c.tensor
    calls = c.tokens * 0.0 + tensor_count(shape) if impl.main_gradients else np.maximum(count / c.gather_bucket, 1.0)
    weights = ring_seconds(d.compute * count + c.tokens * 0.0, calls, c.shard, network, stride=c.tensor)
    persistent, _ = stays_gathered(shape, c)
    small = ring_seconds(d.compute * persistent, np.ones_like(calls), c.shard, network)
    return np.where(c.stage == 3, small, weights)


def _launches(shape: ModelShape, c: Candidates, _d: Dtypes, _impl: Implementation) -> Array:
    each: Array = np.select([c.stage == stage for stage in _TENSOR], list(_TENSOR.values()), 0.0)
    return each * tensor_count(shape)


def _accumulation_bytes(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation) -> Array:
    """Bytes of memory traffic with which ZeRO accumulates one micro batch's gradients."""
    trained = shape.parameters * trained_part.fraction(shape, impl) / c.tensor
    # BF16_Optimizer adds whole low-precision gradients to its own. Stage 1 with another optimizer reduces once a step, so
    # until then autograd adds to the whole gradients; stages 2 and 3 add only their partition.
    whole = np.where(c.stage == 1, trained * 3.0 * d.compute * (1.0 - 1.0 / c.accumulation), 0.0)
    return np.where(is_bf16_optimizer(c, d), trained * (d.compute + 2.0 * d.reduce), whole)


def _overlaps(c: Candidates) -> Array:
    return np.where(c.double_buffer > 0, 1.0, 0.0)


def _lighter_strategies(strategy: ZeroConfig, _cluster: Cluster) -> list[Lighter]:
    cpu, strategies = Offload(), list[Lighter]()
    if strategy.offload_optimizer is None:
        offloaded = strategy.model_copy(update={"offload_optimizer": cpu})
        strategies.append(Lighter(offloaded, "optimizer on the host", 4))
    if strategy.stage < 3:
        strategies.append(Lighter(ZeroConfig(stage=3), "ZeRO-3", 2))
    both = ZeroConfig(stage=3, offload_optimizer=cpu, offload_param=cpu)
    return [*strategies, OPTIMIZER_ON_HOST, Lighter(both, "ZeRO-3 with optimizer and parameters on the host", 6)]


def _table_rows(_cluster: Cluster) -> list[Strategy]:
    return [ZeroConfig(stage=1), ZeroConfig(stage=2), ZeroConfig(stage=3)]


BACKEND = PredictedBackend[ZeroConfig](
    codes=(ZERO,),
    row=_row,
    states=_states,
    host=host_states.zero,
    traffic=_traffic,
    launches=_launches,
    step_launches=1.0,
    lighter_strategies=_lighter_strategies,
    table_rows=_table_rows,
    overlaps=_overlaps,
    accumulation_bytes=_accumulation_bytes,
)
