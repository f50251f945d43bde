"""Neighbours: configurations that differ in a few settings from one that does not fit in memory, and the nearest of
them that fits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Checkpointing, Strategy, TrialConfig
from shardtune.api_schemas.strategies.base import checkpointing_words
from shardtune.api_schemas.trials.predictions import Change
from shardtune.tuner.prediction.backends.record import Lighter
from shardtune.tuner.prediction.backends.registry import BACKENDS

_Level = tuple[Checkpointing, int, bool]
_LEVELS: tuple[_Level, ...] = (
    ("none", 1, False), ("full", 4, False), ("full", 3, False), ("full", 2, False), ("selective", 1, False),
    ("full", 1, False), ("full", 1, True),
)  # fmt: skip
"""Levels of activation checkpointing, as (mode, `checkpoint_every`, `activation_offload`), by rising amount of
recomputation; the last level also keeps blocks' inputs in host memory."""
_OFFLOAD_WEIGHT = 3
"""Weight of activation offload when the distance to another configuration is computed: more than a change of strategy
weighs, less than offloaded model states."""


@dataclass(frozen=True)
class Neighbour:
    """Variant of a configuration that does not fit in memory: `config` differs from it in a few settings, which
    `changes` describes, and needs less memory."""

    config: TrialConfig
    changes: tuple[str, ...]
    weight: int
    """Distance of the neighbour from the original configuration: offloading weighs more than another strategy, which
    weighs more than checkpointing or the micro batch."""


def default_configs(cluster: Cluster, micro_batch: int) -> tuple[TrialConfig, ...]:
    """One configuration per strategy, without activation checkpointing: these are the rows of a table that compares
    strategies."""
    strategies = [strategy for backend in BACKENDS.values() for strategy in backend.table_rows(cluster)]
    return tuple(TrialConfig(strategy=strategy, micro_batch=micro_batch) for strategy in strategies)


def neighbours(config: TrialConfig, cluster: Cluster) -> list[Neighbour]:
    """Neighbours of a configuration that need less memory: combinations of more checkpointing, micro batch 1, more
    sharding and offloading."""
    candidates = []
    current = (config.activation_checkpointing, config.checkpoint_every, config.activation_offload)
    unchanged = Lighter(config.strategy, "", 0)
    for near in (unchanged, *BACKENDS[config.backend].lighter_strategies(config.strategy, cluster)):
        for wanted in dict.fromkeys((current, *_levels_from(current))):
            for micro_batch in dict.fromkeys((config.micro_batch, 1)):
                changed = [near.words] if near.words else []
                changed += _words(wanted, current)
                if micro_batch != config.micro_batch:
                    changed.append("micro batch 1")
                changed_config = _with_level(config, near.strategy, wanted, micro_batch)
                # A mode that the strategy rejects would be advice that cannot be followed.
                if changed and changed_config is not None:
                    weight = near.weight + len(changed) - (1 if near.words else 0)
                    weight += _OFFLOAD_WEIGHT if wanted[2] > config.activation_offload else 0
                    candidates.append(Neighbour(changed_config, tuple(changed), weight))
    return candidates


def _levels_from(current: _Level) -> Sequence[_Level]:
    """Levels of activation checkpointing that may take less memory than the current level. Levels with less
    recomputation are left out, as they need more memory."""
    _, every, offloads = current
    if offloads:
        # Inputs that come back to the device add memory too.
        return [("full", fewer, True) for fewer in range(min(every - 1, 4), 0, -1)]
    return _LEVELS[_LEVELS.index(current) if current in _LEVELS else 0 :]


def _words(wanted: _Level, current: _Level) -> list[str]:
    mode, every, offloads = wanted
    words = [checkpointing_words(mode, every)] if wanted[:2] != current[:2] else []
    return words + (["blocks' inputs in host memory"] if offloads > current[2] else [])


def _with_level(config: TrialConfig, strategy: Strategy, level: _Level, micro_batch: int) -> TrialConfig | None:
    """Copy a configuration with another strategy, level of activation checkpointing and micro batch; None where this
    combination is illegal."""
    names = ("activation_checkpointing", "checkpoint_every", "activation_offload")
    update: dict[str, object] = dict(zip(names, level, strict=True))
    # Checkpointing takes the place of a budget of activations.
    update["activation_memory_budget"] = config.activation_memory_budget if level[0] == "none" else 1.0
    # What selective checkpointing keeps is said of no other mode.
    update["selective_keeps"] = config.selective_keeps if level[0] == "selective" else "products"
    try:
        return TrialConfig.model_validate({**dict(config), **update, "strategy": strategy, "micro_batch": micro_batch})
    except ValueError:
        return None


def cheapest(
    near: Sequence[Neighbour],
    fits: NDArray[np.bool_],
    total_gib: NDArray[np.float64],
    tokens_per_s_per_gpu: NDArray[np.float64] | None,
) -> Change | None:
    """Find the neighbour that fits in memory with the smallest change of the configuration, the fastest among equally
    near ones; None where none fits."""
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
