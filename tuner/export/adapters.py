"""Adapters in exported files: lines of `train_snippet.py`, arguments of TRL, and notes for other programs."""

from typing import Any

from shardtune.api_schemas.training import adapter_targets
from shardtune.api_schemas.training.adapters import ALL_LINEAR, LastLayers, Lora
from shardtune.tuner.export.precision import quantization
from shardtune.tuner.export.quoting import literal
from shardtune.tuner.export.source import ExportSource, torch_dtype

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Names of the linear layers that LoRA adapts in a mixture of experts whose model family is unknown."""
PEFT_IMPORT = "from peft import LoraConfig, inject_adapter_in_model"


def is_adapted(source: ExportSource) -> bool:
    """Whether the exported workload trains an adapter."""
    return source.workload.adapter is not None


def imports(source: ExportSource) -> list[str]:
    """Import line of `train_snippet.py` for PEFT; empty for an adapter that does not need PEFT."""
    return [PEFT_IMPORT] if isinstance(source.workload.adapter, Lora) else []


def needs_blocks(source: ExportSource) -> bool:
    """Whether the exported script needs the model's list of blocks in order to freeze all but the last ones."""
    return isinstance(source.workload.adapter, LastLayers)


def build_lines(source: ExportSource, on_meta: bool) -> list[str]:
    """Lines of `train_snippet.py` that freeze the model and add the adapter, before any backend wraps the model."""
    adapter, lines = source.workload.adapter, []
    if isinstance(adapter, Lora):
        options = ", low_cpu_mem_usage=True" if on_meta else ""
        lines = [
            *(f"# {line}" for line in unlisted_layers(source, adapter)),
            *quantization.build_lines(source),
            "# Before wrapping and sharding. It freezes all other weights; load those of your base model first.",
            f"adapter = {lora_config(source, adapter)}",
            f"inject_adapter_in_model(adapter, model{options})",
        ]
    elif isinstance(adapter, LastLayers):
        lines = [
            "model.requires_grad_(False)",
            f"for block in model.get_submodule(BLOCKS)[-{adapter.layers}:]:",
            "    block.requires_grad_(True)",
        ]
    if lines and source.casts_weights:
        dtype = torch_dtype(source.workload.precision.weights_dtype)
        lines += [
            "for parameter in model.parameters():",
            f"    if not parameter.requires_grad{_unless_packed(source)}:",
            f"        parameter.data = parameter.data.to({dtype})  # no optimizer updates it, so it needs no master",
        ]
    return lines


def _unless_packed(source: ExportSource) -> str:
    return ' and not hasattr(parameter, "bnb_quantized")' if quantization.is_used(source) else ""


def zero_lines(source: ExportSource, part: str, is_created_late: bool = True) -> list[str]:
    """Lines of `train_snippet.py` that set LoRA's B matrices to zero, so that a new adapter changes no output. They are
    needed where weights are created after PEFT has initialised its own."""
    if not isinstance(source.workload.adapter, Lora) or not is_created_late:
        return []
    return [
        f"for name, module in {part}.named_modules():",
        '    if name.endswith("lora_B.default"):',
        "        torch.nn.init.zeros_(module.weight)  # as PEFT begins: the model's own outputs",
    ]


def magnitude_lines(source: ExportSource, part: str) -> list[str]:
    """Lines of `train_snippet.py` that set DoRA's magnitudes to the lengths of the weights' rows. They are needed where
    weights get their values after PEFT has initialised the magnitudes."""
    if not isinstance(source.workload.adapter, Lora) or not source.workload.adapter.dora:
        return []
    return [
        f"for layer in [m for m in {part}.modules() if getattr(m, 'lora_magnitude_vector', None)]:",
        "    rows = layer.base_layer.weight.float().norm(dim=0 if layer.fan_in_fan_out else 1)",
        '    layer.lora_magnitude_vector["default"].weight.copy_(rows)  # as DoRA begins: the model\'s own outputs',
    ]


def casts_inputs(source: ExportSource) -> bool:
    """Whether FSDP1 must cast the inputs of an adapter's matrices, each of which is an FSDP unit."""
    return isinstance(source.workload.adapter, Lora) and source.casts_weights


def unit_lines(source: ExportSource) -> list[str]:
    """Lines of `train_snippet.py` that wrap each matrix of an adapter in an FSDP1 unit of its own."""
    if not isinstance(source.workload.adapter, Lora):
        return []
    options, casts = "options", []
    if casts_inputs(source):
        options = "matrix_options"
        casts = [
            "# PEFT casts a matrix's input to the dtype of the shard, which is that of the masters.",
            'casts = dataclasses.replace(options["mixed_precision"], cast_forward_inputs=True)',
            'matrix_options = {**options, "mixed_precision": casts}',
        ]
    return [
        *casts,
        "# A flat parameter has one dtype and one requires_grad: each matrix is a unit, as in PEFT's wrap policy.",
        'for path in [n for n, _ in block.named_modules() if n.endswith(("lora_A.default", "lora_B.default"))]:',
        '    owner, _, key = path.rpartition(".")',
        "    parent = block.get_submodule(owner)",
        f"    setattr(parent, key, FullyShardedDataParallel(block.get_submodule(path), **{options}))",
    ]


def trained(source: ExportSource, parameters: str) -> str:
    """Source of an expression that selects the trained parameters among `parameters`."""
    return f"[p for p in {parameters} if p.requires_grad]" if is_adapted(source) else parameters


def lora_targets(source: ExportSource, lora: Lora) -> str | list[str]:
    """Target modules for PEFT's configuration, so that it adapts the same layers as the measured trial."""
    if not isinstance(lora.targets, str):
        return list(lora.targets)
    if source.model_summary.moe_class is None:
        return ALL_LINEAR
    # PEFT 0.21 would adapt stacked experts as well, which no trial does.
    layers = adapter_targets.linear_layers(source.study.spec.model.model_type) or _ATTENTION
    return sorted({path.rpartition(".")[2] for path in layers})


def unlisted_layers(source: ExportSource, lora: Lora) -> list[str]:
    """Note on a mixture of experts whose linear layers Shardtune does not list."""
    is_listed = adapter_targets.linear_layers(source.study.spec.model.model_type) is not None
    if is_listed or source.model_summary.moe_class is None or not isinstance(lora.targets, str):
        return []
    return [
        "adapter: trials adapted every linear layer of the blocks, whose names are not listed for this family; compare "
        "target_modules with model.named_modules()"
    ]


def lora_config(source: ExportSource, lora: Lora) -> str:
    """Source of PEFT's configuration of an adapter."""
    targets = lora_targets(source, lora)
    return (
        f"LoraConfig(r={lora.rank}, lora_alpha={_number(lora.alpha)}, target_modules={literal(targets)}, "
        f"lora_dropout=0.0, use_rslora={lora.rslora}{', use_dora=True' if lora.dora else ''})"
    )


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value


def accelerate_notes(source: ExportSource) -> list[str]:
    """Notes on an adapter for a user's own script under Accelerate."""
    adapter = source.workload.adapter
    if adapter is None:
        return []
    before = "before accelerator.prepare"
    if isinstance(adapter, Lora):
        lines = [
            *quantization.load_notes(source),
            f"model = get_peft_model(model, {lora_config(source, adapter)}) {before}, as {adapter.describe()} was measured",
        ]
    else:
        lines = [f"freeze all but the {adapter.describe()} {before}: see {source.shown_in}"]
    if source.casts_weights:
        lines.append(
            f"frozen weights were kept in {source.workload.precision.weights_dtype}: load the base model in this dtype"
        )
    if source.config.backend == "fsdp1" and isinstance(adapter, Lora):
        lines.append(
            "accelerator.state.fsdp_plugin.auto_wrap_policy = peft.utils.other.fsdp_auto_wrap_policy(model): FSDP1 needs "
            "adapters in units of their own"
        )
    return lines


def trainer_notes(source: ExportSource, consumer: str) -> tuple[str, ...]:
    """Notes on the workload's adapter for a program to which the user's script passes a model, such as transformers'
    Trainer; empty without an adapter."""
    adapter = source.workload.adapter
    if adapter is None:
        return ()
    if isinstance(adapter, Lora):
        return (
            *(f"adapter: {line}" for line in quantization.load_notes(source)),
            f"adapter: {adapter.describe()} was measured; hand {consumer} get_peft_model(model, {lora_config(source, adapter)})",
        )
    return (
        f"adapter: the {adapter.describe()} alone were trained; freeze the rest before {consumer}: see {source.shown_in}",
    )


def lost_note(source: ExportSource, consumer: str) -> tuple[str, ...]:
    """Note that the program for which the configuration is exported trains all weights, although an adapter was
    measured; empty without an adapter."""
    adapter = source.workload.adapter
    if adapter is None:
        return ()
    return (
        f"adapter: {adapter.describe()} was measured; this file has {consumer} train all weights, which takes more memory",
    )


def dora_values(lora: Lora, key: str = "use_dora") -> dict[str, Any]:
    """Field of a fine-tuning tool that switches DoRA's trained magnitudes on; empty without DoRA, which is every tool's
    default."""
    return {key: True} if lora.dora else {}


def trl_values(source: ExportSource) -> dict[str, Any]:
    """Fields of TRL's `ModelConfig` for an adapter; empty where the workload has no adapter."""
    lora = source.workload.adapter
    if not isinstance(lora, Lora):
        return {}
    return {
        "use_peft": True,
        "lora_r": lora.rank,
        "lora_alpha": _number(lora.alpha),
        "lora_dropout": 0.0,
        "lora_target_modules": lora_targets(source, lora),
        "use_rslora": lora.rslora,
        **dora_values(lora),
        # Frozen weights were kept in the dtype of the computation.
        "dtype": source.workload.precision.weights_dtype,
        **quantization.trl_values(source),
    }


def trl_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on the workload's adapter for a user of TRL."""
    adapter = source.workload.adapter
    if adapter is None:
        return (
            "adapters: all weights were trained; use_peft trains something else, for which another configuration may be faster",
        )
    if isinstance(adapter, Lora):
        return (*unlisted_layers(source, adapter), *quantization.trl_notes(source))
    return (
        f"adapter: the {adapter.describe()} alone were trained; TRL trains all weights unless your script freezes them",
    )
