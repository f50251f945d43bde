"""FSDP1's parts of each exported file; the exports for Trainer, torchtitan and Lightning cannot express FSDP1."""

from shardtune.api_schemas.strategies import Fsdp1Config
from shardtune.api_schemas.strategies.fsdp1 import HYBRID
from shardtune.tuner.export import adapters, optimizers
from shardtune.tuner.export.backends import common
from shardtune.tuner.export.backends.record import AccelerateParts, ExportedBackend, SnippetParts
from shardtune.tuner.export.precision import loss_scale
from shardtune.tuner.export.source import ExportSource, torch_dtype
from shardtune.tuner.export.templates import fill, indent


def _snippet(source: ExportSource, strategy: Fsdp1Config) -> SnippetParts:
    names = ["CPUOffload", "FullyShardedDataParallel", "MixedPrecision", "ShardingStrategy"]
    names += ["BackwardPrefetch"] if strategy.backward_prefetch else []
    imports = ["\n".join(["from torch.distributed.fsdp import (", *(f"    {name}," for name in sorted(names)), ")"])]
    if strategy.sharding_strategy in HYBRID:
        imports.append("from torch.distributed.device_mesh import init_device_mesh")
    return SnippetParts(
        trainer=_trainer(source, strategy),
        imports=(*imports, *loss_scale.imports(source)),
        standard=_standard_imports(source, strategy),
        constants=(common.clipping(source),),
        helpers=common.materialize() + loss_scale.shared_scaler(source),
        on_meta=True,
        needs_blocks=True,
    )


def _standard_imports(source: ExportSource, strategy: Fsdp1Config) -> tuple[str, ...]:
    used = {"contextlib": common.uses_no_sync(source, strategy.grad_sync), "dataclasses": adapters.casts_inputs(source)}
    return tuple(name for name, is_used in used.items() if is_used)


def _trainer(source: ExportSource, strategy: Fsdp1Config) -> str:
    precision, prefetch = source.workload.precision, strategy.backward_prefetch
    axes = f"({strategy.dp_replicate}, {strategy.dp_shard})"
    shard = "self.model.process_group.rank()" if strategy.dp_shard > 1 else "0"
    return fill(
        "trainer_fsdp1",
        sharding_strategy=strategy.sharding_strategy,
        groups=f'            "device_mesh": init_device_mesh(device.type, {axes}),'
        if strategy.sharding_strategy in HYBRID
        else "",
        cpu_offload=strategy.cpu_offload,
        param_dtype=torch_dtype(precision.compute_dtype) if source.casts_weights else None,
        reduce_dtype=torch_dtype(precision.reduce_dtype) if source.casts_weights else None,
        backward_prefetch=f"BackwardPrefetch.{prefetch}" if prefetch is not None else None,
        options=indent([f'"{key}": {value},' for key, value in strategy.to_fsdp1().items()], 12),
        prepare=indent(common.prepare_blocks(source), 8),
        adapters=indent([*adapters.zero_lines(source, "block"), *adapters.unit_lines(source)], 12),
        optimizer=optimizers.make(source, adapters.trained(source, "self.model.parameters()"), "blocks", shard=shard),
        **common.backward(source, strategy.grad_sync),
        **loss_scale.parts(source, "SharedScaler"),
    )


def _accelerate(source: ExportSource, strategy: Fsdp1Config) -> AccelerateParts:
    lines, dtype = loss_scale.accelerate_notes(source), source.workload.precision.compute_dtype
    if source.casts_weights:
        lines.append(
            # Accelerate's mixed precision sets all three dtypes of FSDP1's MixedPrecision to it.
            f"FullyShardedDataParallelPlugin(mixed_precision_policy=MixedPrecision(torch.{dtype}, torch.float32)): "
            f"Accelerate alone reduces gradients and casts buffers in {dtype}"
        )
    if not strategy.limit_all_gathers:
        lines.append("FullyShardedDataParallelPlugin(limit_all_gathers=False)")
    precision, autocast = common.accelerate_autocast(source)
    lines += autocast
    lost = []
    if strategy.sharding_strategy in HYBRID and strategy.dp_shard != source.cluster.gpus_per_node:
        axes = f"dp_replicate={strategy.dp_replicate}, dp_shard={strategy.dp_shard}"
        groups = f"groups of {strategy.dp_shard} ranks sharded"
        lost.append(f"{axes}: {groups} in the trial, Accelerate shards within a node: see {source.shown_in}")
    section = strategy.to_accelerate(source.model_summary.block_class) | common.fsdp_checkpointing(source)
    return AccelerateParts(
        values={"distributed_type": "FSDP", **precision, "fsdp_config": section},
        script_lines=tuple(lines),
        lost=tuple(lost),
        reduces_every=common.reduces_every(source, strategy.grad_sync),
        checkpoints=True,
        ignored_on_cpu="FSDP",
    )


BACKEND = ExportedBackend[Fsdp1Config](_snippet, _accelerate, None, None, None)
