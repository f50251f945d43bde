"""The `Trainer` class of the training script, one per backend, after `workers.rank.strategies`."""

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, ZeroConfig
from shardtune.api_schemas.strategies.fsdp1 import HYBRID
from shardtune.tuner.export.source import ExportSource, torch_dtype
from shardtune.tuner.export.templates import fill, indent


def source(source: ExportSource) -> str:
    """The body of the class."""
    strategy = source.config.strategy
    if isinstance(strategy, DdpConfig):
        return _ddp(source, strategy)
    if isinstance(strategy, Fsdp1Config):
        return _fsdp1(source, strategy)
    return _fsdp2(source, strategy) if isinstance(strategy, Fsdp2Config) else _zero(source, strategy)


def uses_no_sync(source: ExportSource) -> bool:
    """DDP or FSDP1 that reduces only after the last of several micro batches."""
    strategy = source.config.strategy
    return isinstance(strategy, DdpConfig | Fsdp1Config) and strategy.grad_sync == "last" and source.accumulation > 1


def prepares_blocks(source: ExportSource) -> bool:
    """Checkpoints or compiles the repeated blocks."""
    return source.config.compile or source.config.activation_checkpointing != "none"


def _prepare_blocks(source: ExportSource) -> list[str]:
    if not prepares_blocks(source):
        return []
    lines = ["for block in model.get_submodule(BLOCKS):"]
    lines += ["    checkpointed(block)"] if source.config.activation_checkpointing != "none" else []
    return lines + (["    block.compile()"] if source.config.compile else [])


def _ddp(source: ExportSource, strategy: DdpConfig) -> str:
    prepare = _prepare_blocks(source)
    if source.is_mixed:
        prepare += [
            "for module in list(model.modules()):",
            "    for name, _ in list(module.named_parameters(recurse=False)):",
            "        parametrize.register_parametrization(module, name, Cast(), unsafe=True)",
        ]
    return fill(
        "trainer_ddp",
        prepare=indent(prepare, 8),
        device_ids="None" if source.on_cpu else "[device.index]",
        options=indent([f"{key}={value}," for key, value in strategy.to_ddp().items()], 12),
        micro="micro" if uses_no_sync(source) else "_",
        backward=indent(_backward(source), 12),
        # Views into buckets must survive; setting them to None would make DDP copy gradients back in.
        set_to_none=not strategy.gradient_as_bucket_view,
    )


def _backward(source: ExportSource) -> list[str]:
    lines = ["loss = self.model(input_ids=tokens, labels=tokens).loss", "(loss / ACCUMULATION).backward()"]
    if not uses_no_sync(source):
        return lines
    sync = "with contextlib.nullcontext() if micro == ACCUMULATION - 1 else self.model.no_sync():"
    return [sync, *(f"    {line}" for line in lines)]


def _fsdp1(source: ExportSource, strategy: Fsdp1Config) -> str:
    recipe, prefetch = source.workload.recipe, strategy.backward_prefetch
    axes = f"({strategy.dp_replicate}, {strategy.dp_shard})"
    return fill(
        "trainer_fsdp1",
        sharding_strategy=strategy.sharding_strategy,
        groups=f'            "device_mesh": init_device_mesh(device.type, {axes}),'
        if strategy.sharding_strategy in HYBRID
        else "",
        cpu_offload=strategy.cpu_offload,
        param_dtype=torch_dtype(recipe.compute_dtype) if source.is_mixed else None,
        reduce_dtype=torch_dtype(recipe.reduce_dtype) if source.is_mixed else None,
        backward_prefetch=f"BackwardPrefetch.{prefetch}" if prefetch is not None else None,
        options=indent([f'"{key}": {value},' for key, value in strategy.to_fsdp1().items()], 12),
        prepare=indent(_prepare_blocks(source), 8),
        micro="micro" if uses_no_sync(source) else "_",
        backward=indent(_backward(source), 12),
    )


def _fsdp2(source: ExportSource, strategy: Fsdp2Config) -> str:
    recipe, replicated = source.workload.recipe, strategy.dp_replicate > 1
    offload, count = strategy.cpu_offload, strategy.blocks_per_unit
    units = f"[blocks[i : i + {count}] for i in range(0, len(blocks), {count})]" if count > 1 else "blocks"
    return fill(
        "trainer_fsdp2",
        # With a second axis of size 1 torch would launch an all-reduce with nobody after every reduce-scatter.
        mesh=f"({strategy.dp_replicate}, {strategy.dp_shard})" if replicated else f"({strategy.dp_shard},)",
        mesh_names='("dp_replicate", "dp_shard")' if replicated else '("dp_shard",)',
        reshard=strategy.to_fully_shard()["reshard_after_forward"],
        param_dtype=torch_dtype(recipe.compute_dtype) if source.is_mixed else None,
        reduce_dtype=torch_dtype(recipe.reduce_dtype) if source.is_mixed else None,
        offload_policy=f"CPUOffloadPolicy(pin_memory={strategy.pin_memory})" if offload else "OffloadPolicy()",
        prepare=indent(_prepare_blocks(source), 8),
        units=units,
        prefetch=indent(_prefetch(strategy), 8),
        state_device='torch.device("cpu")' if offload else "device",
        buffers=indent(_OFFLOADED_BUFFERS if offload and not source.on_cpu else [], 8),
        sync=indent(_SYNC[strategy.grad_sync], 12),
    )


_SYNC = {
    "every": [],
    "last": ["self.model.set_requires_gradient_sync(last)"],
    "reduce_scatter": ["self.model.set_requires_all_reduce(last)"],
}
_OFFLOADED_BUFFERS = [
    "for module in model.modules():",
    "    for name, buffer in module.named_buffers(recurse=False):",
    "        setattr(module, name, buffer.to(device))  # only parameters are offloaded",
]


def _prefetch(strategy: Fsdp2Config) -> list[str]:
    first = "heads = [unit[0] for unit in units]" if strategy.blocks_per_unit > 1 else "heads = units"
    forward, backward = strategy.forward_prefetch, strategy.backward_prefetch
    lines = []
    if forward:
        lines.append(f"    head.set_modules_to_forward_prefetch(heads[i + 1 : i + 1 + {forward}])")
    if backward == 0:
        # An empty list means FSDP2's default; the unit itself, already gathered, means none.
        lines.append("    head.set_modules_to_backward_prefetch([head])")
    elif backward > 1:
        lines.append(f"    ahead = heads[max(0, i - {backward}) : i][::-1]")
        lines.append("    head.set_modules_to_backward_prefetch(ahead or [head])")
    return [first, "for i, head in enumerate(heads):", *lines] if lines else []


def _zero(source: ExportSource, strategy: ZeroConfig) -> str:
    prepare = _prepare_blocks(source)
    if strategy.stage == 3 and source.profile.moe_class:
        # The router picks other experts on every rank; hooks inside would gather in different orders and hang.
        prepare.append(f'set_z3_leaf_modules(model, ["{source.profile.moe_class}"])')
    on_host = "DeepSpeedCPUAdam(parameters, adamw_mode=True, **ADAMW)"
    on_device = "torch.optim.AdamW(parameters, fused=True, **ADAMW)"
    return fill(
        "trainer_zero",
        prepare=indent(prepare, 8),
        optimizer=on_host if strategy.offload_optimizer is not None else on_device,
    )
