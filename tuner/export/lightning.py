"""`lightning_strategy.py` for Lightning 2.6: the strategy object and the Trainer's arguments, as functions."""

from typing import Any

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.tuner.export.rendered import Rendered, comment, differences
from shardtune.tuner.export.source import ExportSource, torch_dtype
from shardtune.tuner.export.templates import fill

RELEASE = "lightning 2.6"


def render(source: ExportSource) -> Rendered:
    """One file.

    Raises:
        ValueError: Lightning has no such backend, or the export has no words for it.
    """
    done = _done(source.config, source.accumulation)
    lossy = (*differences(source.config, done, "Lightning"), *_besides(source))
    names, strategy, extra = _strategy(source)
    text = fill(
        "lightning_strategy.py",
        description=source.contender.description,
        release=RELEASE,
        lossy=comment(lossy, ""),
        names=names,
        strategy=strategy,
        trainer=_pretty(_trainer(source)),
        extra=extra,
    )
    return Rendered({"lightning_strategy.py": text}, RELEASE, lossy, done)


def _strategy(source: ExportSource) -> tuple[str, str, str]:
    """Class to import, expression, and what else the file needs."""
    strategy = source.config.strategy
    if isinstance(strategy, DdpConfig):
        options = {**strategy.to_ddp(), "broadcast_buffers": False, "find_unused_parameters": False}
        return "DDPStrategy", f"DDPStrategy({_keywords(options)})", ""
    if isinstance(strategy, ZeroConfig):
        document = strategy.to_deepspeed(
            source.workload, source.config.micro_batch, source.accumulation, "/path/on/nvme"
        )
        # Lightning refuses or overwrites what its Trainer says itself.
        for key in ("gradient_accumulation_steps", "train_batch_size", "gradient_clipping"):
            document.pop(key)
        return "DeepSpeedStrategy", f"DeepSpeedStrategy(config={_pretty(document)})", ""
    if isinstance(strategy, Fsdp2Config):
        world = source.cluster.world_size
        options = {"data_parallel_size": world, "tensor_parallel_size": 1}
        return "ModelParallelStrategy", f"ModelParallelStrategy({_keywords(options)})", _configure(source, strategy)
    raise ValueError(f"backend ({source.config.backend!r}) has no words in this export; export another configuration")


def _configure(source: ExportSource, strategy: Fsdp2Config) -> str:
    workload = source.workload
    policy = "MixedPrecisionPolicy()"
    if source.is_mixed:
        dtypes = torch_dtype(workload.recipe.compute_dtype), torch_dtype(workload.recipe.reduce_dtype)
        policy = f"MixedPrecisionPolicy(param_dtype={dtypes[0]}, reduce_dtype={dtypes[1]})"
    return fill(
        "lightning_fsdp2.py",
        blocks=source.block_list,
        per_unit=strategy.blocks_per_unit,
        reshard=repr(strategy.reshard_after_forward),
        policy=policy,
        offload="CPUOffloadPolicy(pin_memory=" + repr(strategy.pin_memory) + ")"
        if strategy.cpu_offload
        else "OffloadPolicy()",
        forward=strategy.forward_prefetch,
        backward=strategy.backward_prefetch,
    )


def _trainer(source: ExportSource) -> dict[str, Any]:
    cluster, workload = source.cluster, source.workload
    # FSDP2's own policy casts; Lightning's plugin would cast again.
    own_casts = isinstance(source.config.strategy, Fsdp2Config)
    return {
        "accelerator": "cpu" if source.on_cpu else "gpu",
        "devices": cluster.gpus_per_node,
        "num_nodes": cluster.nodes,
        "precision": "bf16-mixed" if source.is_mixed and not own_casts else "32-true",
        "accumulate_grad_batches": source.accumulation,
        "gradient_clip_val": workload.max_grad_norm,
    }


def _done(config: TrialConfig, accumulation: int) -> TrialConfig:
    """Lightning reduces gradients once a step, and its mesh has one data-parallel axis."""
    strategy = config.strategy
    changes: dict[str, Any] = {}
    if not isinstance(strategy, ZeroConfig) and accumulation > 1:
        changes["grad_sync"] = "last"
    if isinstance(strategy, Fsdp2Config) and strategy.dp_replicate > 1:
        changes |= {"dp_replicate": 1, "dp_shard": strategy.dp_replicate * strategy.dp_shard}
    changed = type(strategy).model_validate({**strategy.model_dump(), **changes})
    return config.model_copy(update={"strategy": changed})


def _besides(source: ExportSource) -> tuple[str, ...]:
    lines = [f"micro batch: the data loader's batch size must be {source.config.micro_batch}"]
    config = source.config
    if config.activation_checkpointing != "none" or config.compile:
        lines.append(
            "activation_checkpointing, compile: apply them to the blocks in your module, as train_snippet.py does"
        )
    if source.is_mixed and isinstance(config.strategy, DdpConfig):
        lines.append("recipe: norms and softmax in bfloat16 were measured; Lightning's autocast keeps them in float32")
    if source.on_cpu and not isinstance(config.strategy, DdpConfig):
        lines.append(f"backend: Lightning has no {config.backend} on CPU ranks")
    return tuple(lines)


def _keywords(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _pretty(values: dict[str, Any]) -> str:
    lines = [f"        {name!r}: {value!r}," for name, value in values.items()]
    return "\n".join(["{", *lines, "    }"]).replace("'", '"')
