"""Configurations near one that does not fit, and which of them costs least."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.hardware import Cluster
from shardtune.api_schemas.predictions import Change
from shardtune.api_schemas.strategies import (
    Checkpointing,
    DdpConfig,
    Fsdp1Config,
    Fsdp2Config,
    Offload,
    Strategy,
    TrialConfig,
    ZeroConfig,
)

_CHECKPOINTING: tuple[Checkpointing, ...] = ("none", "selective", "full")


@dataclass(frozen=True)
class Neighbour:
    """A configuration and what was changed to get there."""

    config: TrialConfig
    changes: tuple[str, ...]
    weight: int
    """How far away: offloading weighs more than another strategy, that more than checkpointing or the micro batch."""


def one_of_each(cluster: Cluster, micro_batch: int) -> tuple[TrialConfig, ...]:
    """One configuration per strategy, without checkpointing: the rows of the default table."""
    strategies: list[Strategy] = [DdpConfig(), *(ZeroConfig(stage=stage) for stage in (1, 2, 3))]
    strategies.append(Fsdp2Config(dp_shard=cluster.world_size))
    if cluster.nodes > 1 and cluster.gpus_per_node > 1:
        strategies.append(Fsdp2Config(dp_replicate=cluster.nodes, dp_shard=cluster.gpus_per_node))
    return tuple(TrialConfig(strategy=strategy, micro_batch=micro_batch) for strategy in strategies)


def neighbours(config: TrialConfig, cluster: Cluster) -> list[Neighbour]:
    """Combinations of more checkpointing, micro batch 1, more sharding and offloading."""
    found = []
    level = _CHECKPOINTING.index(config.activation_checkpointing)
    for strategy, strategy_change, strategy_weight in _strategies(config.strategy, cluster):
        for checkpointing in _CHECKPOINTING[level:]:
            if checkpointing == "selective" and isinstance(strategy, ZeroConfig) and strategy.stage == 3:
                continue  # api_schemas.strategies refuses it
            for micro_batch in dict.fromkeys((config.micro_batch, 1)):
                changed = [strategy_change] if strategy_change else []
                weight = strategy_weight
                if checkpointing != config.activation_checkpointing:
                    changed.append(f"{checkpointing} checkpointing")
                    weight += 1
                if micro_batch != config.micro_batch:
                    changed.append("micro batch 1")
                    weight += 1
                near = config.model_copy(
                    update={
                        "strategy": strategy, "activation_checkpointing": checkpointing, "micro_batch": micro_batch,
                    }
                )  # fmt: skip
                if changed:
                    found.append(Neighbour(near, tuple(changed), weight))
    return found


def _strategies(strategy: Strategy, cluster: Cluster) -> list[tuple[Strategy, str, int]]:
    """The strategy itself, and those that hold less of the state on the device."""
    world, cpu = cluster.world_size, Offload()
    choices: list[tuple[Strategy, str, int]] = [(strategy, "", 0)]
    if isinstance(strategy, ZeroConfig):
        if strategy.offload_optimizer is None:
            offloaded = strategy.model_copy(update={"offload_optimizer": cpu})
            choices.append((offloaded, "optimizer on the host", 4))
        if strategy.stage < 3:
            choices.append((ZeroConfig(stage=3), "ZeRO-3", 2))
        both = ZeroConfig(stage=3, offload_optimizer=cpu, offload_param=cpu)
        choices += [
            (ZeroConfig(stage=3, offload_optimizer=cpu), "ZeRO-3 with the optimizer on the host", 4),
            (both, "ZeRO-3 with optimizer and parameters on the host", 6),
        ]
        return choices
    if isinstance(strategy, DdpConfig | Fsdp1Config) or strategy.dp_shard < world:
        choices.append((Fsdp2Config(dp_shard=world), "FSDP2 over all ranks", 2))
    choices += [
        (ZeroConfig(stage=3, offload_optimizer=cpu), "ZeRO-3 with the optimizer on the host", 4),
        (Fsdp2Config(dp_shard=world, cpu_offload=True), "FSDP2 with CPU offload", 5),
    ]
    return choices


def cheapest(
    near: Sequence[Neighbour],
    fits: NDArray[np.bool_],
    total_gib: NDArray[np.float64],
    tokens_per_s_per_gpu: NDArray[np.float64] | None,
) -> Change | None:
    """The nearest that fits, the fastest of equally near ones; None where nothing fits."""
    possible = [index for index in range(len(near)) if fits[index]]
    if not possible:
        return None
    speed = tokens_per_s_per_gpu
    best = min(possible, key=lambda i: (near[i].weight, -float(speed[i]) if speed is not None else 0.0))
    return Change(
        description=" and ".join(near[best].changes),
        config=near[best].config,
        total_gib=float(total_gib[best]),
        tokens_per_s_per_gpu=float(speed[best]) if speed is not None else None,
    )
