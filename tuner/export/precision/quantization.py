"""4-bit base weights in exported files: lines of `train_snippet.py`, arguments of fine-tuning tools, and notes for other
programs."""

from typing import Any

from shardtune.api_schemas.strategies import Fsdp2Config
from shardtune.api_schemas.training.adapters import Lora
from shardtune.api_schemas.training.quantization import QUANTIZATION_PACKAGE
from shardtune.tuner.export.source import ExportSource, torch_dtype
from shardtune.tuner.export.templates import fill


def quantised_lora(source: ExportSource) -> Lora | None:
    """Adapter of a trial whose base weights were in 4 bits; None for any other trial."""
    adapter = source.workload.adapter
    return adapter if isinstance(adapter, Lora) and adapter.quantization is not None else None


def is_used(source: ExportSource) -> bool:
    """Whether the exported trial trained an adapter on base weights in 4 bits."""
    return quantised_lora(source) is not None


def modules(source: ExportSource) -> tuple[str, ...]:
    """Modules that `train_snippet.py` imports for 4-bit weights."""
    return (QUANTIZATION_PACKAGE,) if is_used(source) else ()


def build_lines(source: ExportSource) -> list[str]:
    """Lines of `train_snippet.py` that replace linear layers by 4-bit layers, before the adapter is added."""
    if not is_used(source):
        return []
    return [
        "for block in model.get_submodule(BLOCKS):",
        "    for name, layer in [*block.named_modules()]:",
        "        if isinstance(layer, torch.nn.Linear):",
        "            block.set_submodule(name, four_bit(layer))",
        "model.is_loaded_in_4bit = True  # PEFT's word for such layers",
    ]


def helpers(source: ExportSource) -> str:
    """Source of functions in `train_snippet.py` that make 4-bit layers and load their weights one at a time."""
    lora = quantised_lora(source)
    if lora is None:
        return ""
    return fill(
        "four_bit",
        dtype=torch_dtype(source.workload.precision.compute_dtype),
        format=lora.quantization,
        double=lora.double_quantization,
        storage=_storage(source),
    )


def place_lines(source: ExportSource, otherwise: list[str]) -> list[str]:
    """Lines of `train_snippet.py` that place a model with 4-bit weights on a rank's device; `otherwise`: lines to use
    without 4-bit weights."""
    return ["place(model, model, device)", "model.tie_weights()"] if is_used(source) else otherwise


def unit_lines(source: ExportSource, blocks_per_unit: int) -> list[str]:
    """Lines of `train_snippet.py` that place an FSDP unit on the device before it is sharded; empty without 4-bit
    weights."""
    if not is_used(source):
        return []
    return (
        ["for block in unit:", "    place(model, block, device)"]
        if blocks_per_unit > 1
        else ["place(model, unit, device)"]
    )


def load_note(source: ExportSource) -> str | None:
    """Argument of `from_pretrained` with which a user's script loads the base model in 4 bits; None without 4-bit
    weights."""
    lora = quantised_lora(source)
    if lora is None:
        return None
    compute = torch_dtype(source.workload.precision.compute_dtype)
    return (
        f'quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="{lora.quantization}", '
        f"bnb_4bit_use_double_quant={lora.double_quantization}, bnb_4bit_compute_dtype={compute}, "
        f"bnb_4bit_quant_storage={_storage(source)})"
    )


def load_notes(source: ExportSource) -> list[str]:
    """Note for a user's own script that loads the base model; empty without 4-bit weights."""
    argument = load_note(source)
    return [] if argument is None else [f"load the base model with {argument}, as measured"]


def trl_values(source: ExportSource) -> dict[str, Any]:
    """Fields of TRL's `ModelConfig` for 4-bit weights; empty without them."""
    lora = quantised_lora(source)
    if lora is None:
        return {}
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": lora.quantization,
        "use_bnb_nested_quant": lora.double_quantization,
        "bnb_4bit_quant_storage": _storage(source).removeprefix("torch."),
    }


def trl_notes(source: ExportSource) -> list[str]:
    """Note that TRL updates an adapter on 4-bit weights in another dtype than was measured; empty where it does not."""
    if not is_used(source) or source.has_low_states:
        return []
    return [
        "adapter: its matrices were updated in float32; beside 4-bit weights TRL 1.16 updates them in bfloat16 without float32 "
        "masters, which is another training; measure with bf16-true to compare"
    ]


def axolotl_values(source: ExportSource) -> dict[str, Any]:
    """Keys of axolotl for 4-bit weights; empty without them."""
    lora = quantised_lora(source)
    if lora is None:
        return {}
    # It quantises scales unless it is told otherwise (0.21).
    options = {"bnb_4bit_use_double_quant": lora.double_quantization}
    # By itself it converts embeddings to float32 (0.21).
    keeps_low = {} if source.workload.precision.has_float32_weights else {"embeddings_skip_upcast": True}
    return {"adapter": "qlora", "load_in_4bit": True, "bnb_config_kwargs": options, **keeps_low}


def llama_factory_values(source: ExportSource) -> dict[str, Any]:
    """Keys of LLaMA-Factory for 4-bit weights; empty without them."""
    lora = quantised_lora(source)
    if lora is None:
        return {}
    return {
        "quantization_method": "bnb",
        "quantization_bit": 4,
        "quantization_type": lora.quantization,
        "double_quantization": lora.double_quantization,
    }


def ms_swift_values(source: ExportSource) -> dict[str, Any]:
    """Arguments of ms-swift for 4-bit weights; empty without them."""
    lora = quantised_lora(source)
    if lora is None:
        return {}
    return {
        "quant_method": "bnb",
        "quant_bits": 4,
        "bnb_4bit_quant_type": lora.quantization,
        "bnb_4bit_use_double_quant": lora.double_quantization,
        "bnb_4bit_compute_dtype": source.workload.precision.compute_dtype,
        "bnb_4bit_quant_storage": _storage(source).removeprefix("torch."),
    }


def upcast_notes(source: ExportSource, tool: str) -> list[str]:
    """Note that a fine-tuning tool keeps norms and output head in float32 when base weights are in 4 bits (by
    `peft.prepare_model_for_kbit_training`). Empty where the measured trial did so, too, and under FSDP, where tools do
    not call that function."""
    precision = source.workload.precision
    is_sharded = isinstance(source.config.strategy, Fsdp2Config)
    if not is_used(source) or is_sharded or precision.has_float32_weights:
        return []
    return [
        f"precision: norms and output head in {precision.weights_dtype} were measured; {tool} prepares the model by PEFT, "
        "which may keep some in float32: activations between blocks may take twice the memory"
    ]


def _storage(source: ExportSource) -> str:
    """Dtype in which a tool stores packed 4-bit weights. FSDP2 gathers a unit in one collective only if its parameters
    have one dtype, so there it is the dtype of the other weights."""
    is_sharded = isinstance(source.config.strategy, Fsdp2Config)
    return torch_dtype(source.workload.precision.weights_dtype) if is_sharded else "torch.uint8"
