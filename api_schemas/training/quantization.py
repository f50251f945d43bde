"""Quantization of the frozen weights beside a LoRA adapter (QLoRA): what is quantised, and what it takes in memory.

Names are those of transformers' `BitsAndBytesConfig` without their prefix: `bnb_4bit_quant_type` ("nf4") and
`bnb_4bit_use_double_quant`.
"""

from collections.abc import Mapping
from typing import Literal

Quantization = Literal["nf4"]
"""Number format of quantised base weights: 4-bit NormalFloat (Dettmers et al. 2023, arXiv:2305.14314)."""
QUANTIZATION_SINCE = 2
"""First protocol version whose workers train adapters on quantised base weights."""
QUANTIZATION_PACKAGE = "bitsandbytes"
"""Python package with which ranks quantise weights, and multiply with them."""
QLORA: Literal["qlora"] = "qlora"
"""Name for LoRA on 4-bit weights (QLoRA), as a kind of adapter and in a worker's list of adapters."""
BLOCK = 64
"""Number of weights that share one scale, which bitsandbytes calls `absmax`."""
PACKED_BYTES = 0.5
"""Bytes that a 4-bit weight takes, without its part of the scales."""
SCALES_BLOCK = 256
"""Number of scales that share one second-level scale, where the scales are quantised too (double quantization)."""

_STATED = ("load_in_4bit", "quantization_bit", "quant_bits", "bits", "quantize_base")
_EIGHT_BIT = ("load_in_8bit",)
_OTHERS = ("quantization_config", "quant_method", "quantization_method")
_DOUBLE = ("bnb_4bit_use_double_quant", "use_bnb_nested_quant", "double_quant", "use_double_quant")
_TYPES = ("bnb_4bit_quant_type", "quantization_type", "quant_type")
_REMEDY = "use quantization ('nf4'), which is 4-bit and trains as QLoRA does, or leave it out"


def scale_bytes(double_quantization: bool) -> float:
    """Bytes of the scales for each weight: one float32 for each block of weights, or with double quantization one byte,
    and one float32 for each block of scales."""
    return (1.0 + 4.0 / SCALES_BLOCK) / BLOCK if double_quantization else 4.0 / BLOCK


def check_foreign_names(value: Mapping[str, object]) -> None:
    """Reject quantization settings with the names of other libraries; the error gives this field's name for each.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    for name in (*_EIGHT_BIT, *_STATED, *_OTHERS, *_DOUBLE, *_TYPES):
        stated = value.get(name)
        if not stated:
            continue
        described = f"{name} ({stated!r:.100})"
        if name in _DOUBLE:
            raise ValueError(f"{described} is another library's name; did you mean double_quantization?")
        if name in _EIGHT_BIT or stated == 8:
            raise ValueError(f"{described} asks for 8-bit base weights, which no trial trains; {_REMEDY}")
        raise ValueError(f"{described} is another library's name; {_REMEDY}")


def check_precision(name: str, autocast: bool, quantization: Quantization | None) -> None:
    """Reject autocast together with quantised weights: layers of bitsandbytes give outputs in the dtype of their
    inputs, and not in autocast's.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if autocast and quantization is not None:
        raise ValueError(
            f"precision ({name!r}) with adapter.quantization ({quantization!r}): 4-bit layers leave autocast's dtype, so that "
            "activations take twice the memory, and nobody has compared it over backends; use bf16-mixed"
        )
