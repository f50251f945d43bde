"""Export for axolotl: `axolotl.yaml`, which `axolotl train` reads, and DeepSpeed's JSON beside it.

axolotl takes unknown keys without a word, so a test compares the keys with axolotl's own schema.
"""

from typing import Any

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.tuner.export import adapters, sample_lengths
from shardtune.tuner.export.backends import common, selective
from shardtune.tuner.export.backends.registry import BACKENDS, Backends
from shardtune.tuner.export.environment import torchrun_options
from shardtune.tuner.export.precision import float8, quantization
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.tools import tool_arguments as tools
from shardtune.tuner.export.tools.tool_arguments import ToolArguments
from shardtune.tuner.export.tools.tool_file import tool_files
from shardtune.tuner.export.trainer.repository import SET_ME, repository
from shardtune.tuner.export.trial_rendering import Rendered, note_texts

RELEASE = "axolotl 0.21"
CONFIG = "axolotl.yaml"
_TOOL = "axolotl"
_TRAINER_NAMES = {
    "per_device_train_batch_size": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "max_grad_norm": "max_grad_norm",
    "learning_rate": "learning_rate",
    "adam_beta1": "adam_beta1",
    "adam_beta2": "adam_beta2",
    "adam_epsilon": "adam_epsilon",
    "weight_decay": "weight_decay",
    "optim": "optimizer",
    "lr_scheduler_type": "lr_scheduler",
    "seed": "seed",
    "dataloader_pin_memory": "dataloader_pin_memory",
    "accelerator_config": "accelerator_config",
    "ddp_bucket_cap_mb": "ddp_bucket_cap_mb",
    "ddp_broadcast_buffers": "ddp_broadcast_buffers",
    "ddp_find_unused_parameters": "ddp_find_unused_parameters",
    "logging_nan_inf_filter": "logging_nan_inf_filter",
}
"""Keys of axolotl for fields of `TrainingArguments` that have the same meaning and values."""
_OWN_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")
"""Switches for axolotl's own LoRA kernels; axolotl turns them on unless the file sets them (0.21)."""


def render(source: ExportSource, backends: Backends = BACKENDS) -> Rendered:
    """Render the exported files for axolotl.

    Raises:
        ValueError: the Trainer lacks the backend, the configuration uses more than data parallelism, or axolotl cannot
            express the adapter.
    """
    arguments = tools.tool_arguments(source, _TOOL, backends)
    config, restored = _as_axolotl_runs_it(source, arguments.config)
    lossy = (*note_texts(arguments.notes, without=restored), *_notes(source))
    values = {
        **_model(source),
        **_adapter(source),
        **_data(source),
        **{key: arguments.values[name] for name, key in _TRAINER_NAMES.items() if name in arguments.values},
        "bf16": _is_bf16(source, arguments),
        "fp16": False,
        **_checkpointing(source, arguments),
        **_compile(source, arguments),
        **_sharding(source, arguments),
    }
    command = f"axolotl train {CONFIG} --launcher torchrun -- {torchrun_options(source)}"
    files = tool_files(source, CONFIG, RELEASE, command, lossy, values, arguments.deepspeed)
    return Rendered(files, RELEASE, lossy, config)


def _as_axolotl_runs_it(source: ExportSource, config: TrialConfig) -> tuple[TrialConfig, tuple[str, ...]]:
    """Configuration as axolotl runs it, and the names of knobs that axolotl's file can express although the Trainer's
    cannot."""
    strategy, measured = config.strategy, source.config
    changes: dict[str, Any] = {}
    names: list[str] = []
    if isinstance(strategy, Fsdp2Config) and isinstance(measured.strategy, Fsdp2Config) and strategy.cpu_offload:
        changes["strategy"] = strategy.model_copy(update={"pin_memory": measured.strategy.pin_memory})
        names.append("pin_memory")
    if isinstance(strategy, DdpConfig):
        changes["strategy"] = strategy.model_copy(update={"static_graph": False})
    if _keeps_selected_results(source):
        # axolotl keeps all results of an operator or none, so it cannot keep every second product.
        keeps = "attention" if measured.selective_keeps == "second_products" else measured.selective_keeps
        changes |= {"activation_checkpointing": "selective", "selective_keeps": keeps}
        names += ["activation_checkpointing", "selective_keeps"]
    if _compiles_blocks(source):
        names.append("compile")
    return config.model_copy(update=changes), tuple(names)


def _keeps_selected_results(source: ExportSource) -> bool:
    return source.config.activation_checkpointing == "selective" and source.config.checkpoint_every == 1


def _compiles_blocks(source: ExportSource) -> bool:
    """Whether axolotl compiles each block; it does not if the model itself checkpoints activations (0.21)."""
    config = source.config
    by_fsdp = isinstance(config.strategy, Fsdp2Config) and config.checkpoints_whole_blocks
    return config.compile and (config.activation_checkpointing == "none" or by_fsdp)


def _is_bf16(source: ExportSource, arguments: ToolArguments) -> bool:
    # Beside DeepSpeed it must equal DeepSpeed's own switch; otherwise it is also the dtype in which axolotl loads weights.
    if arguments.deepspeed is not None:
        return bool(arguments.values["bf16"])
    return source.workload.precision.computes_in_bfloat16


def _model(source: ExportSource) -> dict[str, Any]:
    weights = repository(source)
    revision = {} if weights.revision is None else {"revision_of_model": weights.revision}
    return {"base_model": weights.id, **revision, "attn_implementation": source.attention}


def _adapter(source: ExportSource) -> dict[str, Any]:
    if blocks := tools.trained_blocks(source):
        # Regular expressions in which a dot is a dot.
        return {"unfrozen_parameters": [f"^{block}." for block in blocks]}
    if (adapter := tools.lora_of(source)) is None:
        return {}
    lora, targets = adapter
    layers = {"lora_target_linear": True} if isinstance(targets, str) else {"lora_target_modules": targets}
    return {
        "adapter": "lora",
        "lora_r": lora.rank,
        "lora_alpha": tools.alpha_of(lora, _TOOL),
        "lora_dropout": 0.0,
        **layers,
        "peft_use_rslora": lora.rslora,
        **adapters.dora_values(lora, "peft_use_dora"),
        **dict.fromkeys(_OWN_KERNELS, False),
        **quantization.axolotl_values(source),
    }


def _data(source: ExportSource) -> dict[str, Any]:
    data = source.workload.data
    values: dict[str, Any] = {
        "datasets": [{"path": SET_ME, "type": "chat_template"}],
        "output_dir": "./out",
        "num_epochs": 1,
        "sequence_len": source.workload.sequence_length,
        "sample_packing": False,
    }
    if data is None:
        # Rows of equal length, as measured: axolotl pads to a multiple of 64 unless it is told.
        return values | {"pad_to_sequence_len": True, "pad_to_multiple_of": 1}
    if data.is_packed:
        return values | {"sample_packing": True, "eval_sample_packing": False, "pad_to_sequence_len": True}
    values["group_by_length"] = data.layout == "grouped"
    if data.pad_to_multiple_of > 1:
        # Only without `pad_to_sequence_len` does axolotl read the multiple alone.
        return values | {"pad_to_multiple_of": data.pad_to_multiple_of}
    return values | {"pad_to_sequence_len": False}


def _checkpointing(source: ExportSource, arguments: ToolArguments) -> dict[str, Any]:
    if _keeps_selected_results(source):
        keeps_products = source.config.selective_keeps == "products"
        products = [f"aten::{name}" for name in selective.products(source)] if keeps_products else []
        return {
            "gradient_checkpointing": True,
            "gradient_checkpointing_kwargs": dict(tools.NON_REENTRANT),
            "selective_checkpointing": {"save": ["attention", *products]},
        }
    if arguments.checkpoints:
        return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": dict(tools.NON_REENTRANT)}
    return {"gradient_checkpointing": False}


def _compile(source: ExportSource, arguments: ToolArguments) -> dict[str, Any]:
    compiles = bool(arguments.values.get("torch_compile"))
    return {"torch_compile": compiles} | ({"torch_compile_regional": True} if _compiles_blocks(source) else {})


def _sharding(source: ExportSource, arguments: ToolArguments) -> dict[str, Any]:
    strategy = source.config.strategy
    if arguments.deepspeed is not None:
        compiles = {"deepcompile": True} if strategy.compiles else {}
        return {"deepspeed": tools.DEEPSPEED, **compiles}
    if arguments.fsdp is None or not isinstance(strategy, Fsdp2Config):
        return {}
    section = {name: value for name, value in arguments.fsdp.items() if name not in ("version", "cpu_offload")}
    if classes := section.pop("transformer_layer_cls_to_wrap", None):
        section["transformer_layer_cls_to_wrap"] = ",".join(classes)
    section["offload_params"] = strategy.cpu_offload
    if strategy.cpu_offload:
        section["cpu_offload_pin_memory"] = strategy.pin_memory
    mesh = {"dp_shard_size": strategy.dp_shard, "dp_replicate_size": strategy.dp_replicate}
    return {"fsdp_version": 2, "fsdp_config": section, **(mesh if strategy.dp_replicate > 1 else {})}


def _notes(source: ExportSource) -> tuple[str, ...]:
    lines = [f"data: set datasets ({SET_ME}); axolotl's prompt strategies decide which tokens are labels"]
    lines += float8.tool_notes(source, "axolotl", "fp8")
    lines += quantization.upcast_notes(source, "axolotl")
    if _keeps_selected_results(source) and source.config.selective_keeps == "second_products":
        lines.append("selective_keeps: second_products was measured; axolotl has attention, as it counts no products")
    if (data := source.workload.data) is not None:
        lines += [
            f"data: {data.describe()} measured; your own data set decides in axolotl",
            "loss: labels of all ranks were counted together; axolotl divides each rank's loss by its own labels",
            *sample_lengths.grouping_notes(data),
        ]
    if (adapter := tools.lora_of(source)) is not None:
        lines += adapters.unlisted_layers(source, adapter[0])
    return (*lines, *_precision_notes(source), *_backend_notes(source))


def _backend_notes(source: ExportSource) -> tuple[str, ...]:
    strategy = source.config.strategy
    if not isinstance(strategy, DdpConfig):
        return common.not_on_cpu(source, _TOOL)
    return (
        ("static_graph: True was measured; axolotl has False, as it has no key for it",)
        if strategy.static_graph
        else ()
    )


def _precision_notes(source: ExportSource) -> list[str]:
    precision, strategy = source.workload.precision, source.config.strategy
    is_lora, lines = tools.lora_of(source) is not None, []
    if tools.has_masters_apart(source) and isinstance(strategy, DdpConfig) and not is_lora:
        lines.append("precision: float32 masters were measured; axolotl loads and updates bfloat16 weights under DDP")
    if is_lora and precision.autocast and not tools.is_zero(source):
        lines.append("precision: frozen weights in float32 were measured; axolotl loads them in bfloat16")
    if precision.has_low_states and isinstance(strategy, Fsdp2Config):
        lines.append(
            "precision: states in bfloat16 were measured; Accelerate's FSDP2 keeps float32 masters beside bf16"
        )
    return lines
