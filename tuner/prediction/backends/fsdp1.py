"""Prediction for FSDP1: one flat parameter per block; gathered parameters may be kept over micro batches without
reduction."""

import numpy as np

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Fsdp1Config, Strategy
from shardtune.tuner.prediction.backends import host_states, sharded_states, sharded_traffic
from shardtune.tuner.prediction.backends.lighter import on_host, over_all_ranks
from shardtune.tuner.prediction.backends.record import Lighter, PredictedBackend, Row
from shardtune.tuner.prediction.backends.states import States
from shardtune.tuner.prediction.candidates import FSDP1, Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.collectives import Traffic
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network

_UNIT = 155.0
"""Number of kernel launches that FSDP1's hooks add for each unit (one flat parameter), also where the unit is not gathered."""


def _row(strategy: Fsdp1Config, _world_size: int) -> Row:
    return {
        "backend": FSDP1,
        "shard": strategy.dp_shard,
        "replicate": strategy.dp_replicate,
        "regather": 1 if strategy.keeps_parameters else strategy.dp_shard,
        "offload_optimizer": strategy.cpu_offload,
        "offload_parameters": strategy.cpu_offload,
        # FSDP1 always locks what it offloads.
        "pinned_optimizer": strategy.cpu_offload,
        "pinned_parameters": strategy.cpu_offload,
    }


def _states(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, gloo: bool) -> States:
    """Bytes of FSDP1's states on one rank, at several times in a step."""
    # Nothing refers to a reduction's buffers when the next block begins: gloo is done, and torch's `max_memory_allocated`
    # counts no freed buffer that another stream of a GPU may still use.
    return sharded_states.fully_sharded(shape, c, d, impl, gloo, at_once=True)


def _traffic(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, network: Network) -> Traffic:
    return sharded_traffic.traffic(shape, c, d, impl, network, keeps_unsynced=True)


def _launches(shape: ModelShape, c: Candidates, _d: Dtypes, _impl: Implementation) -> Array:
    units: Array = np.ceil(shape.layers / c.blocks_per_unit) + 1.0
    return _UNIT * units


def _lighter_strategies(_strategy: Fsdp1Config, cluster: Cluster) -> list[Lighter]:
    return [over_all_ranks(cluster.world_size), *on_host(cluster.world_size)]


def _table_rows(_cluster: Cluster) -> list[Strategy]:
    """Empty list: the table of strategies shows FSDP2's rows and none for FSDP1."""
    return []


BACKEND = PredictedBackend[Fsdp1Config](
    codes=(FSDP1,),
    row=_row,
    states=_states,
    host=host_states.fully_sharded,
    traffic=_traffic,
    launches=_launches,
    step_launches=0.0,
    lighter_strategies=_lighter_strategies,
    table_rows=_table_rows,
    frees_late=True,
)
