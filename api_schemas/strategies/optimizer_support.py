"""Backends that can train with an optimizer, and the reasons why others cannot."""

from collections.abc import Iterable

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.optimizers import OptimizerSchema
from shardtune.api_schemas.training.search_space import Backend

_FLATTENS: dict[str, str | None] = {
    strategy.model_fields["kind"].default: strategy.flattens
    for strategy in (DdpConfig, ZeroConfig, Fsdp1Config, Fsdp2Config)
}


def check(config: TrialConfig, optimizer: OptimizerSchema) -> None:
    """Reject a configuration whose backend cannot train with the workload's optimizer.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if not optimizer.needs_matrices:
        return
    strategy = config.strategy
    why = strategy.flattens
    if why is not None:
        raise ValueError(f"strategy.kind ({strategy.kind!r}) {_cannot(optimizer, why)}; use ddp or fsdp2")
    if getattr(strategy, "cpu_offload", False):
        why = "offloaded shards would be gathered over the host's network in every step"
        raise ValueError(f"strategy.cpu_offload (true) {_cannot(optimizer, why)}; set it to false")


def can_train(config: TrialConfig, optimizer: OptimizerSchema) -> bool:
    """Whether the configuration's backend can train with the optimizer, as far as `check` knows."""
    try:
        check(config, optimizer)
    except ValueError:
        return False
    return True


def trainable_backends(backends: Iterable[Backend], optimizer: OptimizerSchema) -> tuple[Backend, ...]:
    """Return those of the given backends that can train with the optimizer.

    Raises:
        ValueError: none of them can.
    """
    named = tuple(backends)
    possible = tuple(kind for kind in named if not optimizer.needs_matrices or _FLATTENS[kind] is None)
    if not possible:
        raise ValueError(f"space.backends ({', '.join(named)}) {_cannot(optimizer, _reasons(named))}; add ddp or fsdp2")
    return possible


def dropped_note(backends: Iterable[Backend], optimizer: OptimizerSchema) -> tuple[str, ...]:
    """Return the note on backends of a search that cannot train with the optimizer; empty where all can."""
    dropped = [kind for kind in backends if optimizer.needs_matrices and _FLATTENS[kind] is not None]
    if not dropped:
        return ()
    return (f"space.backends ({', '.join(dropped)}) {_cannot(optimizer, _reasons(dropped))}; they are not searched",)


def _cannot(optimizer: OptimizerSchema, why: str) -> str:
    return f"cannot train with {optimizer.title}, which updates whole matrices: {why}"


def _reasons(kinds: Iterable[Backend]) -> str:
    return ", ".join(dict.fromkeys(why for kind in kinds if (why := _FLATTENS[kind]) is not None))
