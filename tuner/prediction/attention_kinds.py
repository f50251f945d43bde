"""Kinds of attention that predictions do not describe: latent attention (nothing is predicted), and windows (a note)."""

from collections.abc import Mapping
from typing import Any

_ALWAYS_WINDOWED = ("mistral", "mixtral", "gemma2", "gemma3_text", "gpt_oss", "phi3", "starcoder2", "cohere2")
"""Architectures whose layers attend within `sliding_window` wherever the configuration has one."""


def why_unpredictable(config: Mapping[str, Any]) -> str | None:
    """Reason why no memory and speed of an architecture is predicted; None where both can be."""
    rank = config.get("kv_lora_rank")
    if rank is None:
        return None
    return (
        f"kv_lora_rank ({rank!r:.20}) is latent attention, whose activations no formula here describes; `shardtune tune` "
        "measures it"
    )


def window_note(config: Mapping[str, Any], sequence: int) -> str | None:
    """Note on a prediction for a sequence beyond the window of a model's attention; None where the window has no
    effect."""
    window = config.get("sliding_window")
    if isinstance(window, bool) or not isinstance(window, int) or not 0 < window < sequence or not _uses_window(config):
        return None
    return (
        f"sliding_window ({window}): attention is predicted over the whole sequence of {sequence} tokens; layers with the "
        "window do less, so trials may be faster than predicted"
    )


def _uses_window(config: Mapping[str, Any]) -> bool:
    if config.get("use_sliding_window") is False:
        return False
    layers = config.get("layer_types")
    if isinstance(layers, list):
        return "sliding_attention" in layers
    return config.get("model_type") in _ALWAYS_WINDOWED or config.get("use_sliding_window") is True
