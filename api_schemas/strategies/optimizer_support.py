"""Backends that can train with an optimizer, and the reasons why others cannot."""

from collections.abc import Iterable, Mapping

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.optimizers import OptimizerSchema
from shardtune.api_schemas.training.search_space import Backend

_FLATTENS: dict[str, str | None] = {
    strategy.model_fields["kind"].default: strategy.flattens
    for strategy in (DdpConfig, ZeroConfig, Fsdp1Config, Fsdp2Config)
}


_NO_HOST_STEP = "offloaded shards would be gathered over the host's network in every step"


def check(config: TrialConfig, optimizer: OptimizerSchema) -> None:
    """Reject a configuration whose backend cannot train with the workload's optimizer.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    strategy = config.strategy
    why = _obstacle(strategy.kind, optimizer)
    if why is not None:
        raise ValueError(f"strategy.kind ({strategy.kind!r}) {_cannot(optimizer, why)}; use {_able(optimizer)}")
    if getattr(strategy, "cpu_offload", False) and not optimizer.offloads:
        why = _NO_HOST_STEP if optimizer.needs_matrices else "its step on the host was not compared over backends"
        raise ValueError(f"strategy.cpu_offload (true) {_cannot(optimizer, why)}; set it to false")
    if getattr(strategy, "offload_optimizer", None) is not None and not optimizer.offloads:
        why = "DeepSpeed steps offloaded states with its own AdamW"
        raise ValueError(f"strategy.offload_optimizer {_cannot(optimizer, why)}; leave it out")


def can_train(config: TrialConfig, optimizer: OptimizerSchema) -> bool:
    """Whether the configuration's backend can train with the optimizer, by the same rules by which `check` rejects
    configurations."""
    try:
        check(config, optimizer)
    except ValueError:
        return False
    return True


def check_limits(knobs: Mapping[str, object], optimizer: OptimizerSchema) -> None:
    """Reject search limits that allow only states offloaded to the host, if the optimizer cannot update them there.

    Raises:
        ValueError: names the knob, its values and the remedy.
    """
    if optimizer.offloads:
        return
    for name, without in (("offload_optimizer", "none"), ("cpu_offload", False)):
        named = knobs.get(name, without)
        values = named if isinstance(named, list | tuple) else (named,)
        if without not in values:
            raise ValueError(
                f"space.knobs.{name} ({', '.join(map(str, values))}) {_cannot(optimizer, 'no host can step it')}; leave it out"
            )


def trainable_backends(backends: Iterable[Backend], optimizer: OptimizerSchema) -> tuple[Backend, ...]:
    """Return those of the given backends that can train with the optimizer.

    Raises:
        ValueError: none of them can.
    """
    named = tuple(backends)
    possible = tuple(kind for kind in named if _obstacle(kind, optimizer) is None)
    if not possible:
        why = _cannot(optimizer, _reasons(named, optimizer))
        raise ValueError(f"space.backends ({', '.join(named)}) {why}; add {_able(optimizer)}")
    return possible


def dropped_note(backends: Iterable[Backend], optimizer: OptimizerSchema) -> tuple[str, ...]:
    """Return a note that names the backends of a search which cannot train with the optimizer; empty if all of them
    can."""
    dropped = [kind for kind in backends if _obstacle(kind, optimizer) is not None]
    if not dropped:
        return ()
    why = _cannot(optimizer, _reasons(dropped, optimizer))
    return (f"space.backends ({', '.join(dropped)}) {why}; they are not searched",)


def _obstacle(kind: str, optimizer: OptimizerSchema) -> str | None:
    """Return the reason why a backend cannot train with the optimizer; None if it can."""
    return _FLATTENS[kind] if optimizer.needs_matrices else optimizer.excluded.get(kind)


def _able(optimizer: OptimizerSchema) -> str:
    return " or ".join(kind for kind in _FLATTENS if _obstacle(kind, optimizer) is None)


def _cannot(optimizer: OptimizerSchema, why: str) -> str:
    matrices = ", which updates whole matrices" if optimizer.needs_matrices else ""
    return f"cannot train with {optimizer.title}{matrices}: {why}"


def _reasons(kinds: Iterable[Backend], optimizer: OptimizerSchema) -> str:
    return ", ".join(dict.fromkeys(why for kind in kinds if (why := _obstacle(kind, optimizer)) is not None))
