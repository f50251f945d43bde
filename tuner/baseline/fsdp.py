"""FSDP keys that the configuration files of Accelerate and transformers share, as versions 1.15 and 5.23 read them."""

from pydantic import JsonValue, ValidationError

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Checkpointing, Fsdp1Config, Fsdp2Config, TrialConfig
from shardtune.api_schemas.strategies.fields import float8_gather
from shardtune.api_schemas.training.workload import Precision
from shardtune.tuner.baseline.section import Section, in_words

_SILENT = frozenset(["cpu_ram_efficient_loading", "sync_module_states", "state_dict_type", "min_num_params"])
_SILENT |= {"transformer_layer_cls_to_wrap", "xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt"}
_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
"""Names of FSDP's sharding strategies; Accelerate also accepts their position, counted from 1."""
_PREFETCH = {
    "backward_pre": "BACKWARD_PRE",
    "1": "BACKWARD_PRE",
    "backward_post": "BACKWARD_POST",
    "2": "BACKWARD_POST",
}
_PREFETCH |= {"no_prefetch": "", "3": ""}


def without_prefix(values: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """FSDP section of a configuration file with `fsdp_` removed from its keys, as both Accelerate and transformers
    do."""
    return {key.removeprefix("fsdp_"): value for key, value in values.items()}


def read(
    section: Section, version: int, mesh: tuple[int, int] | None, cluster: Cluster, notes: list[str]
) -> TrialConfig:
    """Read a baseline configuration from the FSDP keys of a configuration file, at micro batch 1. `version` is the
    version of FSDP that the library uses where the file has none.

    Raises:
        ValueError: a value the library would not take.
    """
    version = section.integer("version") or version
    if version not in (1, 2):
        raise ValueError(f"{section.name('version')} ({version}) must be 1 or 2; use one of them")
    policy = section.word("auto_wrap_policy")
    if policy not in (None, "transformer_based_wrap"):
        notes.append(
            f"{section.name('auto_wrap_policy')} is not applied: each repeated block is a unit, and the rest one"
        )
    try:
        strategy = _fsdp1(section, cluster, notes) if version == 1 else _fsdp2(section, mesh, cluster, notes)
        full = section.flag("activation_checkpointing")
        offloads = _offloads_inputs(section, version, bool(full))
        notes += [f"{name} is not applied" for name in section.unread(_SILENT)]
        mode: Checkpointing = "full" if full else "none"
        return TrialConfig(strategy=strategy, activation_checkpointing=mode, activation_offload=offloads)
    except ValidationError as error:
        raise in_words(error, section.name("")[:-1], "docs/reference/search-space.md") from error


def _offloads_inputs(section: Section, version: int, checkpoints: bool) -> bool:
    """Whether the file keeps the inputs of checkpointed blocks in host memory.

    Raises:
        ValueError: the file asks for it without activation checkpointing or under FSDP1, which Accelerate rejects.
    """
    key = "activation_checkpointing_offload"
    if not section.flag(key):
        return False
    if version != 2:
        raise ValueError(f"{section.name(key)} (true) needs FSDP2; set {section.name('version')} to 2, or drop it")
    if not checkpoints:
        other = section.name("activation_checkpointing")
        raise ValueError(f"{section.name(key)} (true) needs {other}; set that to true, or drop it")
    return True


def _fsdp1(section: Section, cluster: Cluster, notes: list[str]) -> Fsdp1Config:
    word = section.word("sharding_strategy")
    reshard = section.word("reshard_after_forward")
    strategy = _strategy(section, word if word is not None else reshard)
    if word is None and reshard in ("true", "yes", "false", "no"):
        raise ValueError(
            f"{section.name('reshard_after_forward')} ({reshard}) is FSDP2's; name a sharding strategy, or set version to 2"
        )
    world = cluster.world_size
    replicate, shard = {"NO_SHARD": (world, 1)}.get(strategy, (1, world))
    if strategy in ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"):
        replicate, shard = cluster.nodes, cluster.gpus_per_node
        if replicate == 1:
            notes.append(
                f"{section.name('sharding_strategy')} {strategy} on one node has one group: measured as full sharding"
            )
            strategy = "FULL_SHARD" if strategy == "HYBRID_SHARD" else "SHARD_GRAD_OP"
    prefetch = section.word("backward_prefetch")
    if prefetch is not None and prefetch not in _PREFETCH:
        raise ValueError(
            f"{section.name('backward_prefetch')} ({prefetch!r}) must be BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH"
        )
    gathers, original = section.flag("limit_all_gathers"), section.flag("use_orig_params")
    return Fsdp1Config.model_validate(
        {
            "sharding_strategy": strategy,
            "dp_replicate": replicate,
            "dp_shard": shard,
            # Both libraries gather nothing ahead unless they are told to.
            "backward_prefetch": _PREFETCH.get(prefetch or "", "") or None,
            "forward_prefetch": bool(section.flag("forward_prefetch")),
            "limit_all_gathers": True if gathers is None else gathers,
            # The default of `accelerate launch` and of the Trainer; Accelerate's plugin alone has false.
            "use_orig_params": True if original is None else original,
            "cpu_offload": _offload(section),
        }
    )


def _strategy(section: Section, word: str | None) -> str:
    if word is None:
        return "FULL_SHARD"
    if word.isascii() and word.isdigit() and 1 <= int(word) <= len(_STRATEGIES):
        return _STRATEGIES[int(word) - 1]
    match = next((name for name in _STRATEGIES if name.lstrip("_").lower() == word.lstrip("_")), None)
    if match is None and word not in ("true", "yes", "false", "no"):
        raise ValueError(
            f"{section.name('sharding_strategy')} ({word!r}) must be one of {', '.join(_STRATEGIES)}; use one of them"
        )
    return match or "FULL_SHARD"


def _fsdp2(section: Section, mesh: tuple[int, int] | None, cluster: Cluster, notes: list[str]) -> Fsdp2Config:
    reshard = section.word("reshard_after_forward")
    old = {"full_shard": True, "shard_grad_op": False, "true": True, "yes": True, "false": False, "no": False}
    if reshard is not None and reshard not in old:
        raise ValueError(f"{section.name('reshard_after_forward')} ({reshard!r}) must be true or false under FSDP2")
    for key in ("sharding_strategy", "backward_prefetch", "forward_prefetch", "use_orig_params", "limit_all_gathers"):
        if key in section:
            notes.append(f"{section.name(key)} has no effect under FSDP2")
    replicate, shard = mesh or (1, cluster.world_size)
    return Fsdp2Config(
        dp_replicate=replicate,
        dp_shard=shard,
        reshard_after_forward=True if reshard is None else old[reshard],
        cpu_offload=_offload(section),
        # Both libraries accumulate with gradient synchronisation off until the last micro batch.
        grad_sync="last",
    )


def _offload(section: Section) -> bool:
    return bool(section.flag("offload_params") or section.flag("cpu_offload"))


def with_float8_gather(config: TrialConfig, stated: str, notes: list[str]) -> TrialConfig:
    """Copy of a baseline configuration in which FSDP2 gathers weights in float8, as its file says; without a change, and
    with a note, where it cannot. `stated`: the file's key and value, for the note."""
    strategy = config.strategy
    if not isinstance(strategy, Fsdp2Config):
        notes.append(f"{stated}; measured as false: only FSDP2 gathers in float8")
        return config
    try:
        float8_gather.check(True, strategy.dp_shard, strategy.reshard_after_forward, strategy.cpu_offload)
    except ValueError as error:
        notes.append(f"{stated}; measured as false: {error}")
        return config
    return config.model_copy(update={"strategy": strategy.model_copy(update={float8_gather.NAME: True})})


def note_precision(precision: Precision, tool: str, notes: list[str]) -> None:
    """Add a note that FSDP under this library casts weights and reduces gradients in the lower dtype, if the workload's
    precision does not."""
    if precision.autocast:
        notes.append(
            f"{tool}'s bf16 casts FSDP's weights to bfloat16; measured with float32 weights under autocast ({precision.name})"
        )
    elif not precision.computes_in_float32 and precision.reduces_in_float32:
        short = "fp16" if precision.scales_loss else "bf16"
        notes.append(
            f"{tool}'s {short} reduces gradients in {precision.compute_dtype}; measured with the precision's float32 ({precision.name})"
        )
