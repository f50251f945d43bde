"""Words of the fine-tuning tools for 4-bit base weights, as settings of a workload's adapter."""

from pydantic import JsonValue

from shardtune.tuner.baseline.section import Section
from shardtune.tuner.baseline.tools.tool import Fields

_NF4 = "nf4"
SILENT = frozenset(["bnb_config_kwargs", "quantization_method", "quantization_type", "double_quantization"])
SILENT |= {"quantization_device_map", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "bnb_4bit_quant_type"}
SILENT |= {"bnb_4bit_use_double_quant"}
"""Keys of quantisation that are compared here, or that change no value."""


def of_axolotl(values: Fields) -> dict[str, JsonValue]:
    """Quantisation settings that axolotl's `adapter: qlora` means. Scales are quantised too, unless the file says
    otherwise (0.21).
    """
    if not Section(values, "baseline").flag("load_in_4bit"):
        raise ValueError("baseline.adapter ('qlora') needs load_in_4bit (true) in axolotl; add it, or use adapter lora")
    options = values.get("bnb_config_kwargs") or {}
    if not isinstance(options, dict):
        raise ValueError(f"baseline.bnb_config_kwargs ({options!r:.60}) must be an object; give one, or drop it")
    section = Section(options, "baseline.bnb_config_kwargs")
    return _settings(section, "bnb_4bit_quant_type", "bnb_4bit_use_double_quant")


def of_llama_factory(values: Fields) -> dict[str, JsonValue]:
    """Quantisation settings that LLaMA-Factory's `quantization_bit: 4` means; empty without this key (0.9.5)."""
    top = Section(values, "baseline")
    return _of_bits(top, "quantization_bit", "quantization_method", "quantization_type", "double_quantization")


def of_ms_swift(values: Fields) -> dict[str, JsonValue]:
    """Quantisation settings that ms-swift's `quant_bits: 4` with `quant_method: bnb` means; empty without these keys
    (4.6).
    """
    top = Section(values, "baseline")
    if top.get("quant_bits") is not None and top.get("quant_method") is None:
        # Without a method, ms-swift quantises nothing (4.6, `get_quantization_config`).
        raise ValueError(
            f"baseline.quant_bits ({values['quant_bits']!r:.60}) has no effect without quant_method; add quant_method bnb, or "
            "drop it"
        )
    return _of_bits(top, "quant_bits", "quant_method", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant")


def _of_bits(top: Section, bits: str, method: str, kind: str, double: str) -> dict[str, JsonValue]:
    count = top.integer(bits)
    if count is None:
        return {}
    if count != 4:
        raise ValueError(f"{top.name(bits)} ({count}) is trained by no trial; use 4, or drop it")
    if (top.word(method) or "bnb").lower() not in ("bnb", "bitsandbytes"):
        raise ValueError(f"{top.name(method)} ({top.get(method)!r:.60}) is trained by no trial; use bnb")
    return _settings(top, kind, double)


def _settings(section: Section, kind: str, double: str) -> dict[str, JsonValue]:
    stated, twice = section.word(kind) or _NF4, section.flag(double)
    if stated != _NF4:
        raise ValueError(f"{section.name(kind)} ({stated!r:.60}) is trained by no trial; use {_NF4}")
    return {"quantization": _NF4, "double_quantization": True if twice is None else twice}
