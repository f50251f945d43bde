"""Surrogates: configurations of a few GPUs that stand for configurations of more, with the same work for each rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.targets import ScaledField

_AXES = ("dp_shard", "dp_replicate")
_WHOLE = {"HYBRID_SHARD": "FULL_SHARD", "_HYBRID_SHARD_ZERO2": "SHARD_GRAD_OP"}
_HYBRID = {whole: hybrid for hybrid, whole in _WHOLE.items()}
"""Names of FSDP1's hybrid sharding strategies (within groups of ranks) by the name for the same sharding over all
ranks."""


@dataclass(frozen=True)
class Growth:
    """Way in which a configuration's shard groups scale when the number of GPUs grows."""

    config: TrialConfig
    """Configuration on the study's cluster."""
    group: int | None
    """Number of ranks in a shard group on every cluster size. If None, the group always has all data-parallel ranks, or
    the backend has no such groups."""

    def at(self, ranks: int) -> TrialConfig | None:
        """Configuration scaled to `ranks` ranks; None where its shard groups do not divide them, or the strategy cannot
        run on them."""
        strategy = self.config.strategy
        if not hasattr(strategy, "dp_shard"):
            return self._with(strategy.model_dump(), ranks)
        copies, rest = divmod(ranks, strategy.model_parallel)
        shard = copies if self.group is None else min(self.group, copies)
        if rest or not copies or copies % shard:
            return None
        values = strategy.model_dump() | {"dp_shard": shard, "dp_replicate": copies // shard}
        if "sharding_strategy" in values:
            values["sharding_strategy"] = _fsdp1_name(values)
        return self._with(values, ranks)

    def _with(self, values: Mapping[str, Any], ranks: int) -> TrialConfig | None:
        try:
            config = TrialConfig.model_validate({**self.config.model_dump(), "strategy": values})
            config.strategy.check_ranks(ranks)
        except ValueError:
            return None
        return config


def _fsdp1_name(values: Mapping[str, Any]) -> str:
    name = str(values["sharding_strategy"])
    is_hybrid = values["dp_shard"] > 1 and values["dp_replicate"] > 1
    return _HYBRID.get(name, name) if is_hybrid else _WHOLE.get(name, name)


def growths(config: TrialConfig, here: Cluster, there: Cluster) -> Sequence[Growth]:
    """Ways in which a configuration of the study's cluster can be scaled to the larger target.

    A shard group over all ranks of the cluster may become three things on the target: a group over all ranks, a group
    within each node, or a group of its present size, replicated. A group over some of the ranks keeps its size.
    """
    strategy = config.strategy
    shard, copies = getattr(strategy, "dp_shard", None), getattr(strategy, "dp_replicate", 1)
    if shard is None:
        return (Growth(config, None),)
    if copies > 1:
        return (Growth(config, shard),)
    node = there.gpus_per_node // max(1, strategy.model_parallel // strategy.stages)
    kept = dict.fromkeys(
        group for group in (node, shard) if shard <= group < there.world_size // strategy.model_parallel
    )
    return (Growth(config, None), *(Growth(config, group) for group in kept))


def scaled_fields(measured: TrialConfig, target: TrialConfig) -> tuple[ScaledField, ...]:
    """Sharding and replication sizes (`dp_shard`, `dp_replicate`) that differ between the measured configuration and
    its scaled form on the target."""
    pairs = ((axis, getattr(measured.strategy, axis, 1), getattr(target.strategy, axis, 1)) for axis in _AXES)
    return tuple(
        ScaledField(field=axis, measured=small, target=large) for axis, small, large in pairs if small != large
    )
