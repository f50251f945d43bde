"""FSDP2's parts of each exported file."""

from typing import Any

from shardtune.api_schemas.knobs import Consumer
from shardtune.api_schemas.strategies import Fsdp2Config
from shardtune.tuner.export import adapters, context, experts, pipeline, tensor
from shardtune.tuner.export.backends import activation_offload as offload
from shardtune.tuner.export.backends import common
from shardtune.tuner.export.backends.record import AccelerateParts, ConsumerParts, ExportedBackend, SnippetParts
from shardtune.tuner.export.precision import float8, loss_scale, quantization
from shardtune.tuner.export.quoting import literal
from shardtune.tuner.export.source import ExportSource, torch_dtype
from shardtune.tuner.export.templates import fill, indent
from shardtune.tuner.export.trial_rendering import keywords

_SYNC = {
    "every": [],
    "last": ["self.model.set_requires_gradient_sync(last)"],
    "reduce_scatter": ["self.model.set_requires_all_reduce(last)"],
}
_SHARED_MESH = "from torch.distributed.fsdp._fully_shard import _fully_shard"
_SHARE_MESH = [
    "# fully_shard makes a mesh with communicators of its own for each unit (torch 2.13): share the first one's.",
    "meshes, make = {}, _fully_shard._get_post_forward_mesh_info",
    "_fully_shard._get_post_forward_mesh_info = lambda size, mesh: meshes.get(size) or meshes.setdefault(size, make(size, mesh))",
]
_OFFLOADED_BUFFERS = [
    "for module in model.modules():",
    "    for name, buffer in module.named_buffers(recurse=False):",
    "        setattr(module, name, buffer.to(device))  # only parameters are offloaded",
]


def _snippet(source: ExportSource, strategy: Fsdp2Config) -> SnippetParts:
    policy = "CPUOffloadPolicy" if strategy.cpu_offload else "OffloadPolicy"
    return SnippetParts(
        trainer=_trainer(source, strategy),
        imports=(
            *([_SHARED_MESH] if _reshards_to_groups(strategy) else []),
            "from torch.distributed.device_mesh import init_device_mesh",
            common.import_of("torch.distributed.fsdp", ["MixedPrecisionPolicy", policy, "fully_shard"]),
            *loss_scale.imports(source),
            *(pipeline.imports(source, strategy.pipeline_schedule) if pipeline.has_stages(source) else ()),
        ),
        constants=(common.clipping(source),),
        standard=(*experts.standard_modules(source), *pipeline.standard_modules(source)),
        on_meta=True,
        needs_blocks=True,
    )


def _reshards_to_groups(strategy: Fsdp2Config) -> bool:
    return not isinstance(strategy.reshard_after_forward, bool)


def _trainer(source: ExportSource, strategy: Fsdp2Config) -> str:
    precision = source.workload.precision
    offload, count = strategy.cpu_offload, strategy.blocks_per_unit
    units = f"[blocks[i : i + {count}] for i in range(0, len(blocks), {count})]" if count > 1 else "blocks"
    cut = pipeline.has_stages(source)
    inner = 12 if cut else 8
    expert = experts.trainer(source, strategy)
    return fill(
        "trainer_pipeline" if cut else "trainer_fsdp2",
        **_mesh(strategy),
        **(_stages(source, strategy) if cut else {}),
        **{name: indent(lines, inner if name == "divide" else 8) for name, lines in expert.items()},
        norm=experts.norm(source, "self.counted" if cut else "self.parameters"),
        reshard=strategy.to_fully_shard()["reshard_after_forward"],
        param_dtype=torch_dtype(precision.compute_dtype) if source.casts_weights else None,
        reduce_dtype=torch_dtype(precision.reduce_dtype) if source.casts_weights else None,
        offload_policy=f"CPUOffloadPolicy(pin_memory={strategy.pin_memory})" if offload else "OffloadPolicy()",
        prepare=indent(common.prepare_blocks(source), 8),
        share_mesh=indent(_SHARE_MESH if _reshards_to_groups(strategy) else [], inner),
        units=units,
        prefetch=indent([*_prefetch(strategy), *_calls(strategy, "script", "root" if cut else "model")], inner),
        **({"state_device": 'torch.device("cpu")' if offload else "device"} if cut else {}),
        buffers=indent(pipeline.of_root(source, _OFFLOADED_BUFFERS if offload and not source.on_cpu else []), inner),
        **({} if cut else _placement(source, strategy) | _update(source)),
        sync="" if cut else indent(_SYNC[strategy.grad_sync], 12),
        compute=indent(_scheduled(source), 8) if cut else indent(_compute(source), 12),
    )


def _placement(source: ExportSource, strategy: Fsdp2Config) -> dict[str, str]:
    """Lines of the exported script that give parameters memory and values: 4-bit weights unit by unit before they are
    sharded, all other parameters afterwards."""
    zero = [*adapters.zero_lines(source, "model"), *adapters.magnitude_lines(source, "model")]
    if quantization.is_used(source):
        return {
            "place_unit": indent(quantization.unit_lines(source, strategy.blocks_per_unit), 12),
            "place": indent([*quantization.place_lines(source, []), *zero], 8),
            "materialize": "",
        }
    device = 'torch.device("cpu")' if strategy.cpu_offload else "device"
    lines = [
        f"model.to_empty(device={device})",
        "with torch.no_grad():",
        "    model.init_weights()  # or load your checkpoint with torch.distributed.checkpoint",
        *(f"    {line}" for line in zero),
    ]
    return {"place_unit": "", "place": "", "materialize": indent(lines, 8)}


def _update(source: ExportSource) -> dict[str, str]:
    """Lines of the exported script that unscale and update, and those that then scale weights for gathers in float8."""
    parts, scales = loss_scale.parts(source), float8.update_lines(source)
    return parts | {"update": "\n".join([parts["update"], *([indent(scales, 8)] if scales else [])])}


def _stages(source: ExportSource, strategy: Fsdp2Config) -> dict[str, str]:
    parts = [*(["CONTEXT"] if context.is_shared(source) else []), *(["TENSOR"] if tensor.is_split(source) else [])]
    return {
        "parts": f" // ({' * '.join(parts)})" if parts else "",
        "dtype": torch_dtype(source.workload.precision.weights_dtype),
        **pipeline.trainer(source, strategy, _SYNC[strategy.grad_sync]),
    }


def _scheduled(source: ExportSource) -> list[str]:
    call = "self.schedule.step(tokens=tokens, target=tokens, losses=losses, return_outputs=False)"
    # Of logits that are split by vocabulary.
    return ["with loss_parallel():", f"    {call}"] if tensor.is_split(source) else [call]


def _mesh(strategy: Fsdp2Config) -> dict[str, str]:
    # With a replicate axis of size 1 torch would launch an all-reduce with nobody after every reduce-scatter.
    data = {"dp_replicate": strategy.dp_replicate} if strategy.dp_replicate > 1 else {}
    data["dp_shard"] = strategy.dp_shard
    axes = {"pp": strategy.pipeline_parallel} if strategy.pipeline_parallel > 1 else {}
    axes |= data | ({"tp": strategy.tensor_parallel} if strategy.tensor_parallel > 1 else {})
    return {
        "mesh": repr(tuple(axes.values())),
        "mesh_names": literal(tuple(axes)),
        "data_mesh": f"mesh[{literal(tuple(data))}]" if axes != data else "mesh",
        "split": indent(['split_model(model, mesh["tp"])'] if "tp" in axes else [], 8),
    }


def _compute(source: ExportSource) -> list[str]:
    lines = common.forward_and_backward(source)
    if not tensor.is_split(source):
        return lines
    # Of logits that are split by vocabulary.
    return ["with loss_parallel():", *(f"    {line}" for line in lines), "loss = loss.detach().full_tensor()"]


def _prefetch(strategy: Fsdp2Config) -> list[str]:
    if strategy.expert_parallel > 1:
        return experts.prefetch(strategy)
    first = "heads = [unit[0] for unit in units]" if strategy.blocks_per_unit > 1 else "heads = units"
    forward, backward = strategy.forward_prefetch, strategy.backward_prefetch
    lines = []
    if forward:
        lines.append(f"    head.set_modules_to_forward_prefetch(heads[i + 1 : i + 1 + {forward}])")
    if backward == 0:
        # An empty list means FSDP2's default; the unit itself, already gathered, means none.
        lines.append("    head.set_modules_to_backward_prefetch([head])")
    elif backward > 1 or strategy.pipeline_parallel > 1:
        lines.append(f"    ahead = heads[max(0, i - {backward}) : i][::-1]")
        lines.append("    head.set_modules_to_backward_prefetch(ahead or [head])")
    return [first, "for i, head in enumerate(heads):", *lines] if lines else []


def _calls(strategy: Fsdp2Config, consumer: Consumer, root: str) -> list[str]:
    return [f"{root}.{method}({value!r})" for method, value in strategy.calls(consumer).items()]


def _accelerate(source: ExportSource, strategy: Fsdp2Config) -> AccelerateParts:
    lines, dtype = loss_scale.accelerate_notes(source), source.workload.precision.compute_dtype
    if source.casts_weights:
        lines.append(
            "FullyShardedDataParallelPlugin(fsdp_version=2, mixed_precision_policy=MixedPrecisionPolicy("
            f"torch.{dtype}, torch.float32, torch.{dtype})): Accelerate alone reduces gradients in {dtype}"
        )
    precision, autocast = common.accelerate_autocast(source)
    lines += autocast
    values: dict[str, Any] = {
        "distributed_type": "FSDP",
        **precision,
        "fsdp_config": strategy.to_accelerate(source.model_summary.block_class)
        | common.fsdp_checkpointing(source)
        | offload.accelerate_section(source),
    }
    if strategy.dp_replicate > 1:
        values["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": strategy.dp_replicate,
            "parallelism_config_dp_shard_size": strategy.dp_shard,
        }
    lost = _lost_by_accelerate(source, strategy)
    return AccelerateParts(values, tuple(lines), lost, checkpoints=True, ignored_on_cpu="FSDP")


def _lost_by_accelerate(source: ExportSource, strategy: Fsdp2Config) -> tuple[str, ...]:
    lines = [*tensor.accelerate_notes(source), *pipeline.accelerate_notes(source), *experts.accelerate_notes(source)]
    if pipeline.has_stages(source):
        several = f" with pipeline_virtual_stages={strategy.pipeline_virtual_stages}"
        lines.append(f"pipeline_schedule={strategy.pipeline_schedule!r}{several}: see {source.shown_in}")
    lines += common.accelerate_losses(source, strategy)
    if _reshards_to_groups(strategy):
        lines.append(f"reshard_after_forward={strategy.reshard_after_forward} is true here, which Accelerate can say")
    return tuple(lines)


def _training_arguments(source: ExportSource, strategy: Fsdp2Config) -> ConsumerParts:
    lines = []
    if source.casts_weights:
        lines.append("precision: gradients reduced in float32 were measured; Accelerate reduces them in bfloat16")
    script_lines = []
    if strategy.dp_replicate > 1:
        mesh = f"{strategy.dp_replicate} × {strategy.dp_shard}"
        script_lines.append(
            f"dp_replicate × dp_shard ({mesh}): set them by TrainingArguments(parallelism_config=ParallelismConfig(…)), "
            "see the snippet"
        )
    consumer_strategy = strategy.as_accelerate_runs_it(source.accumulation)
    notes = (*lines, *common.weights_differ(source, "Trainer"), *common.ignored_on_cpu(source))
    return ConsumerParts(consumer_strategy, notes, tuple(script_lines))


def _torchtitan(source: ExportSource, strategy: Fsdp2Config) -> ConsumerParts:
    """Parts of the file exported for torchtitan with FSDP2. torchtitan cannot set the prefetch, makes each block one
    FSDP unit, and reduces gradients in every micro batch."""
    sync = "every" if source.accumulation > 1 else strategy.grad_sync
    # Under a pipeline torch's own stage reduces after the last backward (2.13).
    changes: dict[str, Any] = {"grad_sync": "last" if pipeline.has_stages(source) else sync}
    changes["pipeline_virtual_stages"] = pipeline.torchtitan_virtual_stages(source, strategy)
    changes["reshard_after_forward"] = bool(strategy.reshard_after_forward)
    return ConsumerParts(
        strategy=strategy.as_run_by("torchtitan").model_copy(update=changes),
        notes=(
            "units: torchtitan also shards the embedding, and norm with output, as units of their own",
            *common.weights_differ(source, "torchtitan"),
            *tensor.torchtitan_notes(source),
            *pipeline.torchtitan_notes(source),
            *experts.torchtitan_notes(source),
        ),
        values={
            **strategy.keyed("torchtitan"),
            "fsdp_reshard_after_forward": "never" if strategy.reshard_after_forward is False else "always",
            **tensor.torchtitan_mesh(source),
            **pipeline.torchtitan_mesh(source, strategy),
            **experts.torchtitan_mesh(source),
        },
    )


def _lightning(source: ExportSource, strategy: Fsdp2Config) -> ConsumerParts:
    """Parts of the file exported for Lightning with FSDP2. Lightning's mesh has one data-parallel axis, and Lightning
    reduces gradients once a step."""
    world = source.cluster.world_size
    changes: dict[str, Any] = {"grad_sync": "last"} if source.accumulation > 1 else {}
    changes["dp_shard"] = strategy.dp_replicate * strategy.dp_shard
    options = {"data_parallel_size": world, "tensor_parallel_size": 1}
    return ConsumerParts(
        strategy=strategy.as_run_by("lightning", **changes),
        notes=common.not_on_cpu(source, "Lightning"),
        values={
            "class": "ModelParallelStrategy",
            "strategy": f"ModelParallelStrategy({keywords(options)})",
            # FSDP2's own policy casts weights; Lightning's plugin would cast again.
            "casts": source.autocasts,
        },
        code=_lightning_model(source, strategy),
    )


def _lightning_model(source: ExportSource, strategy: Fsdp2Config) -> str:
    precision, policy = source.workload.precision, "MixedPrecisionPolicy()"
    if source.casts_weights:
        dtypes = torch_dtype(precision.compute_dtype), torch_dtype(precision.reduce_dtype)
        policy = f"MixedPrecisionPolicy(param_dtype={dtypes[0]}, reduce_dtype={dtypes[1]})"
    return fill(
        "lightning_fsdp2.py",
        blocks=literal(source.block_list),
        per_unit=strategy.blocks_per_unit,
        share_mesh=indent([_SHARED_MESH, "", *_SHARE_MESH] if _reshards_to_groups(strategy) else [], 4),
        reshard=repr(strategy.reshard_after_forward),
        policy=policy,
        offload=f"CPUOffloadPolicy(pin_memory={strategy.pin_memory!r})" if strategy.cpu_offload else "OffloadPolicy()",
        forward=strategy.forward_prefetch,
        backward=strategy.backward_prefetch,
        calls=indent(_calls(strategy, "lightning", "model"), 4),
    )


BACKEND = ExportedBackend[Fsdp2Config](_snippet, _accelerate, _training_arguments, _torchtitan, _lightning)
