"""DDP's parts of each exported file."""

from typing import Any

from shardtune.api_schemas.strategies import DdpConfig
from shardtune.tuner.export import adapters, optimizers
from shardtune.tuner.export.backends import common
from shardtune.tuner.export.backends.record import AccelerateParts, ConsumerParts, ExportedBackend, SnippetParts
from shardtune.tuner.export.precision import loss_scale, quantization
from shardtune.tuner.export.source import ExportSource, torch_dtype
from shardtune.tuner.export.templates import fill, indent
from shardtune.tuner.export.trial_rendering import keywords


def _snippet(source: ExportSource, strategy: DdpConfig) -> SnippetParts:
    imports, helpers = ["from torch.nn.parallel import DistributedDataParallel"], ""
    if source.casts_weights:
        imports.append("from torch.nn.utils import parametrize")
        helpers = fill("compute_in", compute_dtype=torch_dtype(source.workload.precision.compute_dtype))
    return SnippetParts(
        trainer=_trainer(source, strategy),
        imports=(*imports, *loss_scale.imports(source)),
        standard=("contextlib",) if common.uses_no_sync(source, strategy.grad_sync) else (),
        constants=(common.clipping(source),),
        helpers=helpers,
        on_device=torch_dtype(source.workload.precision.master_dtype),
    )


def _trainer(source: ExportSource, strategy: DdpConfig) -> str:
    prepare = common.prepare_blocks(source)
    if source.casts_weights:
        # Frozen weights are in the lower dtype already.
        trained = " if p.requires_grad" if adapters.is_adapted(source) else ""
        prepare += [
            "for module in list(model.modules()):",
            f"    for name in [n for n, p in module.named_parameters(recurse=False){trained}]:"
            if trained
            else "    for name, _ in list(module.named_parameters(recurse=False)):",
            "        parametrize.register_parametrization(module, name, Cast(), unsafe=True)",
            "share_classes(model)",
        ]
    return fill(
        "trainer_ddp",
        place=indent(quantization.place_lines(source, ["model.to(device)"]), 8),
        prepare=indent([*adapters.zero_lines(source, "model", quantization.is_used(source)), *prepare], 8),
        device_ids="None" if source.on_cpu else "[device.index]",
        options=indent([f"{key}={value}," for key, value in _options(source, strategy).items()], 12),
        **common.backward(source, strategy.grad_sync),
        optimizer=optimizers.make(source, "self.parameters", "model.get_submodule(BLOCKS)"),
        # Views into buckets must survive; setting them to None would make DDP copy gradients back in.
        set_to_none=not strategy.gradient_as_bucket_view,
        **loss_scale.parts(source),
    )


def _options(source: ExportSource, strategy: DdpConfig) -> dict[str, Any]:
    """Keyword arguments of `DistributedDataParallel` that differ from torch's defaults, or that were searched."""
    unused = {"find_unused_parameters": True} if source.leaves_parameters_unused else {}
    return {**strategy.to_ddp(), **unused}


def _accelerate(source: ExportSource, strategy: DdpConfig) -> AccelerateParts:
    options = {**_options(source, strategy), "broadcast_buffers": False}
    lines = [f"kwargs_handlers=[DistributedDataParallelKwargs({keywords(options)})]"]
    return AccelerateParts(
        script_lines=tuple(lines),
        lost=common.autocast_differs(source, "Accelerate"),
        reduces_every=common.reduces_every(source, strategy.grad_sync),
    )


def _training_arguments(source: ExportSource, strategy: DdpConfig) -> ConsumerParts:
    # TrainingArguments has no field for it (transformers 5.23).
    by_hand = "\n    trainer.accelerator.ddp_handler.gradient_as_bucket_view = True"
    return ConsumerParts(
        strategy=strategy.as_run_by("training_arguments"),
        notes=common.autocast_differs(source, "Trainer"),
        values={"ddp_find_unused_parameters": True} if source.leaves_parameters_unused else {},
        code=by_hand if strategy.gradient_as_bucket_view else "",
    )


def _torchtitan(source: ExportSource, strategy: DdpConfig) -> ConsumerParts:
    sync = "every" if source.accumulation > 1 else strategy.grad_sync
    return ConsumerParts(
        strategy=strategy.as_run_by("torchtitan", grad_sync=sync),
        notes=common.autocast_differs(source, "torchtitan"),
        values={
            "data_parallel_replicate_degree": source.cluster.world_size,
            "data_parallel_shard_degree": 1,
            "fsdp_reshard_after_forward": "never",
        },
    )


def _lightning(source: ExportSource, strategy: DdpConfig) -> ConsumerParts:
    unused = source.leaves_parameters_unused
    options = {**strategy.to_ddp(), "broadcast_buffers": False, "find_unused_parameters": unused}
    sync = "last" if source.accumulation > 1 else strategy.grad_sync
    return ConsumerParts(
        strategy=strategy.as_run_by("lightning", grad_sync=sync),
        notes=common.autocast_differs(source, "Lightning"),
        values={
            "class": "DDPStrategy",
            "strategy": f"DDPStrategy({keywords(options)})",
            "casts": source.casts_weights or source.autocasts,
        },
    )


BACKEND = ExportedBackend[DdpConfig](_snippet, _accelerate, _training_arguments, _torchtitan, _lightning)
