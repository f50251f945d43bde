"""Rejection of models that no trial could train, as far as config.json shows it, before a worker traces them.

A worker decides whether transformers knows the architecture.
"""

from collections.abc import Mapping

from pydantic import JsonValue

from shardtune.api_schemas.training.models import ModelSpec

_ENCODERS = frozenset(
    [
        "bert",
        "roberta",
        "xlm-roberta",
        "xlm-roberta-xl",
        "camembert",
        "electra",
        "ernie",
        "data2vec-text",
        "rembert",
        "roformer",
        "megatron-bert",
        "roberta-prelayernorm",
        "xmod",
        "big_bird",
        "modernbert",
        "distilbert",
        "deberta",
    ]
)
"""Model types of bidirectional encoders; `is_decoder` in their configuration makes them causal."""
_ENCODER_DECODERS = frozenset(
    [
        *("t5", "mt5", "umt5", "longt5", "switch_transformers", "bart", "mbart", "pegasus", "pegasus_x", "marian"),
        *("m2m_100", "led", "prophetnet", "fsmt", "blenderbot", "blenderbot-small", "whisper", "bigbird_pegasus"),
        *("encoder-decoder", "seamless_m4t", "nllb-moe", "plbart", "t5gemma"),
    ]
)
"""Model types whose configuration in transformers is an encoder-decoder unless `is_encoder_decoder` is false."""
_VISION = frozenset(["vit", "clip", "siglip", "dinov2", "swin", "beit", "deit", "convnext", "detr", "sam", "resnet"])
_HEADS = (("hidden_size", "num_attention_heads"), ("n_embd", "n_head"), ("d_model", "n_heads"))


def check(model: ModelSpec) -> None:
    """Reject a model that no trial could train, such as a model with quantised weights.

    Raises:
        ValueError: names the field of the model's file, its value and the remedy.
    """
    if model.is_own:
        return
    _check_kind(model)
    if model.config.get("quantization_config") or model.trained_config.get("quantization_config"):
        raise _field_error(
            "quantization_config",
            "given",
            "trains quantised weights, which no trial does; take it out to tune the training of the whole weights, or bring "
            "your own code (docs/how-to/own-code.md)",
        )
    _check_heads(model.trained_config)


def _check_kind(model: ModelSpec) -> None:
    kind, config = str(model.model_type), model.trained_config
    is_encoder_decoder = config.get("is_encoder_decoder", kind in _ENCODER_DECODERS)
    if is_encoder_decoder is True:
        raise _field_error(
            "is_encoder_decoder",
            True,
            "is not trained here: trials train causal language models; use a decoder-only one",
        )
    if kind in _VISION:
        raise _field_error(
            "model_type",
            kind,
            "is a vision model: trials train causal language models, or your own code (docs/how-to/own-code.md)",
        )
    if kind in _ENCODERS and config.get("is_decoder") is not True:
        raise _field_error(
            "model_type",
            kind,
            "looks in both directions, so it is no causal language model; set is_decoder to true to train it as one, or bring "
            "your own code (docs/how-to/own-code.md)",
        )


def _check_heads(config: Mapping[str, JsonValue]) -> None:
    for width, heads in _HEADS:
        size, count = config.get(width), config.get(heads)
        if _are_positive_ints(size, count) and "head_dim" not in config and size % count:  # type: ignore[operator]
            raise _field_error(
                width, size, f"must be a multiple of {heads} ({count}); change one of them, or give head_dim"
            )
    count, groups = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if _are_positive_ints(count, groups) and count % groups:  # type: ignore[operator]
        raise _field_error(
            "num_attention_heads", count, f"must be a multiple of num_key_value_heads ({groups}); change one of them"
        )


def _are_positive_ints(*values: JsonValue) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in values)


def _field_error(name: str, value: JsonValue, problem: str) -> ValueError:
    return ValueError(f"{name} ({value!r}) {problem}")
