"""Prediction for FSDP2 and HSDP: DTensors sharded along their first axis, in units of one or more blocks."""

import numpy as np

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Fsdp2Config, Strategy
from shardtune.api_schemas.strategies.pipeline_schedules import SCHEDULES
from shardtune.tuner.prediction.backends import host_states, sharded_states, sharded_traffic
from shardtune.tuner.prediction.backends.lighter import on_host, over_all_ranks
from shardtune.tuner.prediction.backends.record import Lighter, PredictedBackend, Row
from shardtune.tuner.prediction.backends.states import States
from shardtune.tuner.prediction.candidates import FSDP2, Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.collectives import Traffic
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network
from shardtune.tuner.prediction.tensors import tensor_count

_GATHER = (35.0, 2.0)
"""Kernel launches with which FSDP2 gathers parameters, as a pair: launches per unit, and launches per parameter in the
unit. They copy in and out, and make, register and free views."""
_REDUCE = (160.0, 4.0)
"""Kernel launches with which FSDP2 reduces gradients, as a pair: launches per unit, and launches per parameter in the
unit. They copy gradients, make a DTensor of each, and accumulate."""
_ALONE = 0.5
"""Fraction of FSDP2's launches for gathers and reductions that remains in a group of one rank, which copies but calls
no collective."""


def _row(strategy: Fsdp2Config, _world_size: int) -> Row:
    reshard = strategy.reshard_after_forward
    # A shard group of one rank still frees its compute copies, unless they are kept.
    regather = max(2, strategy.dp_shard) if reshard is True else 1 if reshard is False else reshard
    return {
        "backend": FSDP2,
        "shard": strategy.dp_shard,
        "replicate": strategy.dp_replicate,
        "tensor": strategy.tensor_parallel,
        "stages": strategy.pipeline_parallel,
        "experts": strategy.expert_parallel,
        "schedule": SCHEDULES.index(strategy.pipeline_schedule),
        "virtual": strategy.pipeline_virtual_stages,
        "regather": regather,
        "float8_gather": strategy.float8_gather,
        "backward_prefetch": strategy.backward_prefetch,
        "blocks_per_unit": strategy.blocks_per_unit,
        "offload_optimizer": strategy.cpu_offload,
        "offload_parameters": strategy.cpu_offload,
        "pinned_optimizer": strategy.cpu_offload and strategy.pin_memory,
        "pinned_parameters": strategy.cpu_offload and strategy.pin_memory,
    }


def _padding(shape: ModelShape, c: Candidates) -> Array:
    """Number of padding elements by which FSDP2's gathered buffer for one block's stacked experts exceeds the
    parameters."""
    if shape.experts == 1:
        return np.zeros_like(c.shard)
    # transformers 5 keeps the experts of a layer in one tensor of (experts, …), which `fully_shard` splits along the
    # experts: more ranks than experts leave ranks empty, and the gathered buffer is padded to one expert per rank.
    # Where ranks divide experts, each rank's are sharded without remainder.
    padded = np.ceil(shape.experts / c.shard) * c.shard / shape.experts
    extra: Array = np.where(c.experts > 1, 0.0, (padded - 1.0) * shape.expert_parameters)
    return extra


def _states(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, gloo: bool) -> States:
    """Bytes of FSDP2's states on one rank, at several times in a step."""
    # `set_is_last_backward(False)` keeps the root's reduce-scatter input until the next micro batch reduces a unit.
    return sharded_states.fully_sharded(shape, c, d, impl, gloo, _padding(shape, c), root_waits=True)


def _traffic(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, network: Network) -> Traffic:
    return sharded_traffic.traffic(shape, c, d, impl, network, _padding(shape, c))


def _launches(shape: ModelShape, c: Candidates, _d: Dtypes, _impl: Implementation) -> Array:
    units = np.ceil(shape.layers / c.blocks_per_unit) + 1.0
    gathers = np.where(c.regather > 1, 2.0, 1.0)
    reductions = np.where(c.sync_last > 0, 1.0 / np.maximum(c.accumulation, 1.0), 1.0)
    unit, tensor = gathers * np.array(_GATHER)[:, None] + reductions * np.array(_REDUCE)[:, None]
    launches: Array = (units * unit + tensor_count(shape) * tensor) * np.where(c.shard > 1, 1.0, _ALONE)
    return launches


def _lighter_strategies(strategy: Fsdp2Config, cluster: Cluster) -> list[Lighter]:
    world = cluster.world_size
    over_ranks = [over_all_ranks(world)] if strategy.dp_shard < world else []
    return [*over_ranks, *on_host(world)]


def _table_rows(cluster: Cluster) -> list[Strategy]:
    """Rows of FSDP2 in the table that compares strategies: one sharded over all ranks; on several nodes another one
    sharded within each node."""
    strategies: list[Strategy] = [Fsdp2Config(dp_shard=cluster.world_size)]
    if cluster.nodes > 1 and cluster.gpus_per_node > 1:
        strategies.append(Fsdp2Config(dp_replicate=cluster.nodes, dp_shard=cluster.gpus_per_node))
    return strategies


BACKEND = PredictedBackend[Fsdp2Config](
    codes=(FSDP2,),
    row=_row,
    states=_states,
    host=host_states.fully_sharded,
    traffic=_traffic,
    launches=_launches,
    step_launches=6.0,  # Each operator passes through DTensor's dispatch.
    lighter_strategies=_lighter_strategies,
    table_rows=_table_rows,
    uploads_masters=True,
)
