"""Read a model's shape from its `config.json`.

Covers the decoder families below exactly (tested against `transformers` on the meta device). Any other architecture
needs a worker's trace.
"""

import json
from collections.abc import Mapping
from typing import Any

from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.shapes.config_keys import WatchedConfig, similar_key

_NO_PLAN = "transformers has no plan of tensor parallelism for its architecture"
_SPLIT_EXPERTS = "its experts are split as no style of torch does"
_LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe")
_REMEDY = (
    "so it has to be built to be counted: `shardtune predict CONFIG --trace` does where torch is installed, and a study's "
    "worker does by itself; `model_summary` in a request takes what either counted"
)
FAMILIES: tuple[str, ...] = (*_LLAMA_LIKE, "gpt2", "gpt_neox", "mpt")
"""Model families (`model_type` values) whose parameters and FLOPs are computed by formula from the config.json."""


class NoClosedForm(ValueError):
    """Error raised for an architecture whose parameters can be counted only by building the model."""


def from_config(config: Mapping[str, Any], name: str = "") -> ModelShape:
    """Read a model's shape from a Hugging Face `config.json`.

    Raises:
        NoClosedForm: unknown family.
        ValueError: a missing field; names it and what to add.
    """
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise NoClosedForm(f"model_type ({kind!r}) has no closed form (only {', '.join(FAMILIES)} have), {_REMEDY}")
    return _read_shape(WatchedConfig(config), name)


_UNCOUNTED: Mapping[tuple[str, str], tuple[tuple[object, ...], str]] = {
    ("qwen3_moe", "mlp_only_layers"): ((None, [], ()), "leaves blocks without experts"),
    ("qwen3_moe", "decoder_sparse_step"): ((None, 1), "leaves blocks without experts"),
    ("gpt_neox", "attention_bias"): ((None, True), "leaves attention without biases"),
    ("gpt2", "add_cross_attention"): ((None, False), "gives each block a second attention"),
}
"""Fields of families whose other values the formulas do not count: the values that they count, and what others do."""


def check_formula(config: Mapping[str, Any]) -> None:
    """Reject a model of a known family that the family's formulas count wrongly.

    Raises:
        NoClosedForm: names the field and what it does.
    """
    for (kind, field), (counted, effect) in _UNCOUNTED.items():
        value = config.get(field)
        if config.get("model_type") == kind and value not in counted:
            raise NoClosedForm(f"{field} ({value!r:.60}) {effect}, and such a model has no closed form, {_REMEDY}")


def unknown_keys(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Messages about keys of a config.json that look like a misspelt dimension, for architectures computed by
    formula."""
    watched = WatchedConfig(config)
    if config.get("model_type") not in FAMILIES:
        return ()
    try:
        _read_shape(watched, "")
    except ValueError:
        # `from_config` reports the error.
        return ()
    return watched.unknown_keys()


def _read_shape(config: WatchedConfig, name: str) -> ModelShape:
    kind = str(config["model_type"])
    read = {"gpt2": _gpt2, "gpt_neox": _gpt_neox, "mpt": _mpt}.get(kind, _llama_like)
    shape = read(config, name or kind)
    config.check_names()
    if shape.heads % shape.kv_heads:
        raise ValueError(
            f"num_key_value_heads ({shape.kv_heads}) must divide num_attention_heads ({shape.heads}); "
            "use a divisor of the number of heads"
        )
    return shape


def shape_if_known(config: Mapping[str, Any]) -> ModelShape | None:
    """Model's shape where its config.json alone determines it; None where a worker has to trace the model."""
    try:
        return from_config(config)
    except ValueError:
        return None


def to_text(config: Mapping[str, Any]) -> str:
    """Text of a model configuration, used as the key of caches."""
    return json.dumps(config, sort_keys=True)


def from_text(config: str) -> dict[str, Any]:
    """Model configuration parsed from the text that `to_text` returns."""
    return dict(json.loads(config))


def _positive_int(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = config.get(field)
    if value is None:
        value = default
    if value is None:
        similar = similar_key(field, config)
        remedy = "add it, as in the model's config.json"
        if similar is not None:
            remedy = f"it has {similar}: did you mean {field}?"
        raise ValueError(f"{field} is missing from the model's config; {remedy}")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{field} ({value!r}) must be a whole number of at least 1; correct the model's config")
    return value


def _optional_int(config: Mapping[str, Any], field: str) -> int | None:
    return None if config.get(field) is None else _positive_int(config, field)


def _llama_like(config: Mapping[str, Any], name: str) -> ModelShape:
    kind = config["model_type"]
    hidden, heads = _positive_int(config, "hidden_size"), _positive_int(config, "num_attention_heads")
    moe = kind in ("mixtral", "qwen3_moe")
    experts = _positive_int(config, "num_local_experts" if kind == "mixtral" else "num_experts") if moe else 1
    # transformers' Qwen3 configuration defaults head_dim to 128 whatever the width; that of its mixtures does not (5.23).
    default_head = 128 if kind == "qwen3" else hidden // heads
    # Mistral's, Mixtral's and Qwen2's code reads neither.
    has_attention_biases = kind in ("llama", "qwen3", "qwen3_moe") and bool(config.get("attention_bias", False))
    return ModelShape(
        name=name,
        layers=_positive_int(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_positive_int(config, "num_key_value_heads", heads),
        head_dim=_positive_int(config, "head_dim", default_head),
        ffn=_positive_int(config, "moe_intermediate_size" if kind == "qwen3_moe" else "intermediate_size"),
        vocab=_positive_int(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        experts=experts,
        experts_per_token=_positive_int(config, "num_experts_per_tok", 2) if moe else 1,
        qkv_bias=kind == "qwen2" or has_attention_biases,
        o_bias=has_attention_biases,
        mlp_bias=kind == "llama" and bool(config.get("mlp_bias", False)),
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        tensor_note=_SPLIT_EXPERTS if moe else None,
        max_positions=_optional_int(config, "max_position_embeddings"),
    )


def _multi_head(config: Mapping[str, Any], hidden: str, heads: str) -> dict[str, Any]:
    """Fields of the model shape that GPT-like families share: equal numbers of key heads and query heads, and
    LayerNorm."""
    width, count = _positive_int(config, hidden), _positive_int(config, heads)
    if count > width:
        raise ValueError(f"{hidden} ({width}) must not be below {heads} ({count}); correct the model's config")
    return {"hidden": width, "heads": count, "kv_heads": count, "head_dim": width // count, "norm": "layer"}


def _gpt2(config: Mapping[str, Any], name: str) -> ModelShape:
    positions = _positive_int(config, "n_positions", 1024)
    activation = config.get("activation_function", "gelu_new")
    return ModelShape(
        name=name,
        layers=_positive_int(config, "n_layer"),
        **_multi_head(config, "n_embd", "n_head"),
        ffn=_positive_int(config, "n_inner", 4 * _positive_int(config, "n_embd")),
        vocab=_positive_int(config, "vocab_size"),
        mlp="gelu_tanh" if activation == "gelu_new" else "gelu",
        tied=bool(config.get("tie_word_embeddings", True)),
        biases=True,
        tensor_note=_NO_PLAN,
        learned_positions=positions,
        max_positions=positions,
    )


def _gpt_neox(config: Mapping[str, Any], name: str) -> ModelShape:
    return ModelShape(
        name=name,
        layers=_positive_int(config, "num_hidden_layers"),
        **_multi_head(config, "hidden_size", "num_attention_heads"),
        ffn=_positive_int(config, "intermediate_size"),
        vocab=_positive_int(config, "vocab_size"),
        mlp="gelu",
        tied=bool(config.get("tie_word_embeddings", False)),
        biases=True,
        max_positions=_optional_int(config, "max_position_embeddings"),
    )


def _mpt(config: Mapping[str, Any], name: str) -> ModelShape:
    return ModelShape(
        name=name,
        layers=_positive_int(config, "n_layers"),
        **_multi_head(config, "d_model", "n_heads"),
        # Whatever expansion_ratio says: transformers' code does not read it (5.23).
        ffn=4 * _positive_int(config, "d_model"),
        vocab=_positive_int(config, "vocab_size"),
        mlp="gelu",
        tied=bool(config.get("tie_word_embeddings", True)),
        max_positions=_optional_int(config, "max_seq_len"),
        tensor_note=_NO_PLAN,
        pipeline_note="its blocks return more than hidden states",
        context_note="it has attention of its own, which transformers cannot replace",
    )
