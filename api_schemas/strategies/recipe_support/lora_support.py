"""Backends, mesh axes and knobs with which LoRA trains beside quantised weights or with magnitudes (DoRA), and the reasons
why others cannot."""

from collections.abc import Iterable, Mapping

from shardtune.api_schemas.strategies import TrialConfig, ZeroConfig
from shardtune.api_schemas.training.adapters import AdapterSchema, Lora, quantization_of
from shardtune.api_schemas.training.search_space import Backend

ZERO_STAGES = (1, 2)
"""ZeRO stages that train an adapter on quantised weights and give the same result as training in a single process."""
_QUANTISED: Mapping[str, str] = {
    "fsdp1": "flattens a unit's parameters into one tensor of one dtype, and its compute dtype would replace the packed bits"
}
"""Reasons why backends cannot train an adapter on quantised weights, by backend."""
_MAGNITUDES: Mapping[str, str] = {
    "fsdp1": "reduces no gradients of a unit that forward calls twice where it casts weights (torch 2.13), as DoRA calls "
    "LoRA's matrices"
}
"""Reasons why backends cannot train the magnitudes of DoRA, by backend."""
_ZERO_3 = "gathers weights in the dtype of the computation, and nobody has shown that packed bits survive it"
_CONTEXT = "gives each rank a part of every sample, which nobody has compared beside quantised weights"
_UNCOMPILED = ("fsdp2",)
"""Backends with which `torch.compile` breaks the graph of a block at each layer whose weights are quantised."""
_BREAKS = (
    "FSDP2 gathers plain parameters, which bitsandbytes' layers pack anew in each forward: the graph breaks at each linear "
    "layer, so that compilation saves nothing"
)
_ABLE = "ddp, fsdp2 or zero"


def check(config: TrialConfig, adapter: AdapterSchema | None) -> None:
    """Reject a configuration that would train the adapter with another result than a single process.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    strategy, beside, unable = config.strategy, _beside(adapter), _unable_backends(adapter)
    if strategy.kind in unable:
        raise ValueError(f"strategy.kind ({strategy.kind!r}) {beside}: it {unable[strategy.kind]}; use {_ABLE}")
    if getattr(strategy, "deepcompile", False) and not can_deepcompile(adapter):
        raise ValueError(f"deepcompile (true) {beside}: nobody has compared it; set it to false")
    if quantization_of(adapter) is None:
        return
    if isinstance(strategy, ZeroConfig) and strategy.stage not in ZERO_STAGES:
        raise ValueError(
            f"strategy.stage ({strategy.stage}) {beside}: it {_ZERO_3}; use stage 1 or 2, ddp or fsdp2, or leave out "
            "quantization"
        )
    if config.compile and not can_compile(config.backend, adapter):
        raise ValueError(
            f"compile (true) {beside} under {config.backend}: {_BREAKS}; set it to false, or use ddp or zero"
        )
    check_axis("context_parallel", config.context_parallel, adapter)


def check_axis(name: str, size: int, adapter: AdapterSchema | None) -> None:
    """Reject context parallelism, in which several ranks share each sample, together with quantised weights. Other
    parallel axes are rejected by `adapter_support`.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if size > 1 and quantization_of(adapter) is not None:
        raise ValueError(f"{name} ({size}) {_CONTEXT} ({_named(adapter)}); use 1, or leave out quantization")


def can_compile(backend: str, adapter: AdapterSchema | None) -> bool:
    """Whether `torch.compile` compiles the blocks of a backend without graph breaks, given the weights to which the
    adapter is added."""
    return quantization_of(adapter) is None or backend not in _UNCOMPILED


def can_deepcompile(adapter: AdapterSchema | None) -> bool:
    """Whether DeepCompile trains the adapter with the same result as the other backends."""
    return not _unable_backends(adapter)


def why_not_compiled(backend: str) -> str:
    """Return the reason why a backend does not compile its blocks if their weights are quantised."""
    return f"beside quantised weights {backend} is not compiled: {_BREAKS}"


def can_train(config: TrialConfig, adapter: AdapterSchema | None) -> bool:
    """Whether a configuration trains the adapter with the same result as training in a single process."""
    try:
        check(config, adapter)
    except ValueError:
        return False
    return True


def trainable_backends(backends: Iterable[Backend], adapter: AdapterSchema | None) -> tuple[Backend, ...]:
    """Return those of the given backends that can train the adapter.

    Raises:
        ValueError: none of them can.
    """
    named, unable = tuple(backends), _unable_backends(adapter)
    possible = tuple(kind for kind in named if kind not in unable)
    if named and not possible:
        reasons = ", ".join(unable[kind] for kind in named)
        raise ValueError(f"space.backends ({', '.join(named)}) {_beside(adapter)}: each {reasons}; add {_ABLE}")
    return possible


def dropped_notes(
    backends: Iterable[Backend], knobs: Mapping[str, object], adapter: AdapterSchema | None, *, compiles: bool = False
) -> tuple[str, ...]:
    """Return notes for the user on the backends, ZeRO stages and compiled blocks that a search leaves out because they
    cannot train the adapter. `compiles` says whether the search tries `torch.compile`."""
    named, beside = tuple(backends), _beside(adapter)
    notes = [
        f"space.backends ({kind}) {beside}: it {why}; it is not searched"
        for kind, why in _unable_backends(adapter).items()
        if kind in named
    ]
    if quantization_of(adapter) is None:
        return tuple(notes)
    stated = knobs.get("stage")
    stages = stated if isinstance(stated, list | tuple) else (3 if stated is None else stated,)
    if "zero" in named and 3 in stages:
        notes.append(f"space.knobs.stage (3) {beside}: it {_ZERO_3}; it is not searched")
    if compiles:
        notes += [
            f"space.knobs.compile (true) {beside} under {kind}: {_BREAKS}; it is not searched there"
            for kind in _UNCOMPILED
            if kind in named
        ]
    return tuple(notes)


def _unable_backends(adapter: AdapterSchema | None) -> Mapping[str, str]:
    """Return the reason why a backend cannot train the adapter, by the backend's name. Backends that can train it are
    left out."""
    if _has_magnitudes(adapter):
        return _MAGNITUDES
    return {} if quantization_of(adapter) is None else _QUANTISED


def _has_magnitudes(adapter: AdapterSchema | None) -> bool:
    return isinstance(adapter, Lora) and adapter.dora


def _named(adapter: AdapterSchema | None) -> str:
    return f"workload.adapter.quantization: {quantization_of(adapter)}"


def _beside(adapter: AdapterSchema | None) -> str:
    if _has_magnitudes(adapter):
        return "cannot train magnitudes (workload.adapter.dora: true)"
    return f"cannot train beside quantised weights ({_named(adapter)})"
