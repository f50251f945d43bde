"""Selective checkpointing in exported files: parts of `train_snippet.py`, and words for programs whose scripts or modules
have to apply it."""

from collections.abc import Iterable

from shardtune.api_schemas.strategies import SelectiveKeeps
from shardtune.api_schemas.strategies.base import checkpointing_words
from shardtune.tuner.export.backends import mlp_slices
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill, indent

_ATTENTION = (
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_fused_attention_overrideable",
)
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm")
"""Matrix products whose results selective checkpointing keeps by default."""
SAVED_OPERATORS = (*PRODUCTS, *_ATTENTION)
"""Operators whose results selective checkpointing keeps by default, as in `workers.blocks.checkpointing`; a test
compares the two lists."""
_BIASED_EXPERTS = ("gpt_oss", "openai_privacy_filter")
"""Architectures whose experts have biases, which transformers adds to the results of `_grouped_mm` in place (5.23), so
that these results cannot be kept."""
_KEPT: dict[SelectiveKeeps, str] = {
    "products": "matrix products and attention",
    "second_products": "attention and every second matrix product",
    "attention": "attention alone",
}


def is_used(source: ExportSource) -> bool:
    """Whether the exported configuration recomputes a part of each checkpointed block."""
    return source.config.activation_checkpointing == "selective"


def products(source: ExportSource) -> tuple[str, ...]:
    """Matrix products of the exported model whose results can be kept."""
    has_biases = source.study.spec.model.model_type in _BIASED_EXPERTS
    return tuple(name for name in PRODUCTS if name != "_grouped_mm" or not has_biases)


def standard(source: ExportSource) -> list[str]:
    """Modules of Python's library that `train_snippet.py` imports for selective checkpointing."""
    return ["functools"] if is_used(source) and source.config.selective_keeps != "second_products" else []


def helpers(source: ExportSource) -> str:
    """Source of the functions that `train_snippet.py` defines for selective checkpointing."""
    keeps, and_not = source.config.selective_keeps, mlp_slices.unkept_products(source)
    if keeps == "second_products":
        return fill(
            "checkpointing_second_products",
            products=_names(products(source), 4),
            kept=_names(_ATTENTION, 4),
            and_not=and_not,
        )
    names = _ATTENTION if keeps == "attention" else (*products(source), *_ATTENTION)
    return fill("checkpointing_selective", kept=_names(names), results=_KEPT[keeps], and_not=and_not)


def words(source: ExportSource) -> str:
    """Describe activation checkpointing, with what the selective one keeps if that is not the default."""
    config = source.config
    described = checkpointing_words(config.activation_checkpointing, config.checkpoint_every)
    if config.selective_keeps == "products":
        return described
    return f"{described}, which keeps the results of {_KEPT[config.selective_keeps]}"


def _names(operators: Iterable[str], spaces: int = 8) -> str:
    return indent([f'"{name}",' for name in operators], spaces)
