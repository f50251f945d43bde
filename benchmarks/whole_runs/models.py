"""Models of whole runs: dimensions from their published configurations, and by parameters where none is known here."""

import math
import re
from typing import Any

from shardtune.api_schemas.training.models import ModelSpec

_KNOWN: dict[str, tuple[int, int, int, int, int, int]] = {
    # layers, hidden, heads, key-value heads, width of the MLP, vocabulary
    "llama-3-8b": (32, 4096, 32, 8, 14336, 128256), "llama-3.1-8b": (32, 4096, 32, 8, 14336, 128256),
    "llama-3-70b": (80, 8192, 64, 8, 28672, 128256), "llama-3.1-70b": (80, 8192, 64, 8, 28672, 128256),
    "llama-3.1-405b": (126, 16384, 128, 8, 53248, 128256), "llama-3.2-1b": (16, 2048, 32, 8, 8192, 128256),
    "llama-2-7b": (32, 4096, 32, 32, 11008, 32000), "llama-2-13b": (40, 5120, 40, 40, 13824, 32000),
    "llama-2-70b": (80, 8192, 64, 8, 28672, 32000), "llama-7b": (32, 4096, 32, 32, 11008, 32000),
    "llama-65b": (80, 8192, 64, 64, 22016, 32000), "deepseek-67b": (95, 8192, 64, 8, 22016, 102400),
    "olmo-3-32b": (64, 5120, 40, 8, 27648, 100352), "smollm3-3b": (36, 2048, 16, 4, 11008, 128256),
    "tinyllama-1.1b": (22, 2048, 32, 4, 5632, 32000),
}  # fmt: skip
_EXPERTS: dict[str, tuple[int, int, int, int, int, int, int]] = {
    # layers, hidden, heads, width of an expert, experts, experts of a token (shared ones included), vocabulary; heads are
    # as many as give latent attention's parameters
    "deepseek-v2": (60, 5120, 64, 1536, 160, 8, 102400),
    "deepseek-v3": (61, 7168, 96, 2048, 256, 9, 129280),
    "mixtral-8x7b": (32, 4096, 32, 14336, 8, 2, 32000),
}  # fmt: skip
_LENGTHS = {
    # Tokens of a sequence in pre-training, as model cards, papers and training configurations state them.
    "glm-130b": 2048, "mpt-7b": 2048, "pythia": 2048, "tinyllama": 2048, "llama-3-": 8192, "llama-3.1-": 8192, "olmo-3": 8192,
    "smollm3": 4096, "deepseek": 4096,
}  # fmt: skip
_USUAL_LENGTH = 4096
_POSITIONS = 1 << 20


def trained_length(name: str) -> int:
    """Sequence length of a run's pre-training: the published one where it is known here, else 4096."""
    key = _key(name)
    return next((length for start, length in _LENGTHS.items() if key.startswith(start)), _USUAL_LENGTH)


def _key(name: str) -> str:
    return name.lower().replace(" ", "-")


def model(name: str, parameters_b: float, notes: str) -> ModelSpec:
    """Model of a run: of its published dimensions where they are known here, else a Llama of as many parameters; a mixture
    of experts is one of as many active parameters."""
    key = _key(name)
    if key in _EXPERTS:
        layers, hidden, heads, width, experts, chosen, vocab = _EXPERTS[key]
        config: dict[str, Any] = _llama(layers, hidden, heads, 8, width, vocab) | {
            "model_type": "qwen3_moe", "num_experts": experts, "num_experts_per_tok": chosen, "head_dim": 128,
            "moe_intermediate_size": width,
        }  # fmt: skip
    elif key in _KNOWN:
        config = _llama(*_KNOWN[key])
    else:
        active = re.search(r"active (\d+(?:\.\d+)?)B", notes)
        config = _of_size(float(active[1]) if active else parameters_b)
    return ModelSpec.model_validate({"name": re.sub(r"[^A-Za-z0-9._-]", "-", name), "config": config})


def _llama(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int) -> dict[str, Any]:
    return {
        "model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": ffn, "vocab_size": vocab,
        "max_position_embeddings": _POSITIONS,
    }  # fmt: skip


def _of_size(parameters_b: float) -> dict[str, Any]:
    """Llama of about so many parameters, with a hidden size of 128 for each layer, heads of 128 and an MLP of 8/3."""
    layers = max(8, round((parameters_b * 1e9 / (12.0 * 128.0**2)) ** (1.0 / 3.0)))
    hidden = 128 * math.ceil(math.sqrt(parameters_b * 1e9 / (12.0 * layers)) / 128.0)
    heads = hidden // 128
    return _llama(layers, hidden, heads, heads, 256 * math.ceil(hidden * 8 / 3 / 256), 50432)
