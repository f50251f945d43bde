"""Quantization of the frozen weights beside a LoRA adapter (QLoRA): what is quantised, and what it takes in memory.

Names are those of transformers' `BitsAndBytesConfig` without their prefix: `bnb_4bit_quant_type` ("nf4") and
`bnb_4bit_use_double_quant`.
"""

from collections.abc import Mapping
from typing import Literal

Quantization = Literal["nf4"]
"""Number format of quantised base weights: 4-bit NormalFloat (Dettmers et al. 2023, arXiv:2305.14314)."""
QUANTIZATION_SINCE = 2
"""First protocol version whose workers can train adapters on quantised weights."""
QUANTIZATION_PACKAGE = "bitsandbytes"
"""Python package with which ranks quantise weights, and multiply with them."""
QLORA: Literal["qlora"] = "qlora"
"""Name of QLoRA (LoRA on 4-bit weights), both as the `kind` of an adapter and in a worker's list of adapters."""
BLOCK = 64
"""Number of quantised weights that share one scale (bitsandbytes calls it `absmax`)."""
PACKED_BYTES = 0.5
"""Bytes of one 4-bit weight, without its part of the quantisation scales."""
SCALES_BLOCK = 256
"""Number of scales that share one scale of their own, if the scales of 4-bit weights are quantised too (double
quantization)."""

_STATED = ("load_in_4bit", "quantization_bit", "quant_bits", "bits", "quantize_base")
_EIGHT_BIT = ("load_in_8bit",)
_OTHERS = ("quantization_config", "quant_method", "quantization_method")
_DOUBLE = ("bnb_4bit_use_double_quant", "use_bnb_nested_quant", "double_quant", "use_double_quant")
_TYPES = ("bnb_4bit_quant_type", "quantization_type", "quant_type")
_REMEDY = "use quantization ('nf4'), which is 4-bit and trains as QLoRA does, or leave it out"


def scale_bytes(double_quantization: bool) -> float:
    """Return the bytes of the scales per quantised weight. Each block of weights has one float32 scale. With double
    quantization, it has a scale of one byte, and each block of scales has one float32."""
    return (1.0 + 4.0 / SCALES_BLOCK) / BLOCK if double_quantization else 4.0 / BLOCK


def check_foreign_names(value: Mapping[str, object]) -> None:
    """Reject quantization settings that have the names of other libraries. The error gives the name that is used here.

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
    """Reject autocast together with quantised weights. Layers of bitsandbytes return outputs in the dtype of their
    inputs, and not in the dtype of autocast.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if autocast and quantization is not None:
        raise ValueError(
            f"precision ({name!r}) with adapter.quantization ({quantization!r}): 4-bit layers leave autocast's dtype, so that "
            "activations take twice the memory, and nobody has compared it over backends; use bf16-mixed"
        )
