"""Traced shape: a model's parameter and FLOP counts from a worker's model summary, with widths computed by formula
where known.

For an architecture without a formula, widths are those of a Llama block with as many parameters: an estimate, marked as
an estimate.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from shardtune.api_schemas.strategies.fields.mlp_slices import EXPERTS
from shardtune.api_schemas.training.adapters import AdapterSchema, LastLayers
from shardtune.api_schemas.training.models import MOST_ELEMENTS, BlockSummary, ModelSpec, ModelSummary
from shardtune.tuner.prediction.adapters.layers import AdaptedLayers
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.shapes import config_shape, own_shape
from shardtune.tuner.prediction.shapes.counted_shape import TracedShape

__all__ = ["TracedShape", "of_study", "summary_of", "why_unpredictable", "window_note", "with_adapter"]

Shape = TypeVar("Shape", bound=ModelShape)

_HEAD_DIM = 64
"""Width of an attention head in the Llama block that stands in for the block of an unknown architecture."""
_MOST_BLOCKS = 1000
"""Maximum number of blocks that a model summary contains."""
_ALWAYS_WINDOWED = ("mistral", "mixtral", "gemma2", "gemma3_text", "gpt_oss", "phi3", "starcoder2", "cohere2")
"""Architectures whose layers attend within `sliding_window` wherever the configuration has one."""


def of_study(model: ModelSpec, model_summary: ModelSummary, adapter: AdapterSchema | None = None) -> ModelShape | None:
    """Model shape on which a study's predictions are based; None where no step of the user's own code was traced, the
    model's FLOPs could not be counted, or its attention has no formula."""
    if model.is_own:
        return own_shape.of_summary(model, model_summary)
    if model_summary.forward_flops_per_token is None:
        return None
    # A Llama block of the same size keeps other activations: its figures would be false, not rough.
    if why_unpredictable(model.trained_config) is not None:
        return None
    try:
        shape = config_shape.from_config(model.trained_config, model.name)
    except ValueError:
        # Another architecture, or one whose file leaves fields to transformers' defaults.
        return with_adapter(_estimate_shape(model.name, model_summary), model.model_type, adapter)
    known = {field.name: getattr(shape, field.name) for field in fields(ModelShape)}
    return with_adapter(TracedShape(**known, counted=model_summary), model.model_type, adapter)


def with_adapter(shape: Shape, model_type: str | None, adapter: AdapterSchema | None) -> Shape:
    """Shape of the model with an adapter on its blocks.

    Raises:
        ValueError: a target module of the adapter matches no layer, or the model has fewer layers than the adapter
            trains.
    """
    if adapter is None:
        return shape
    if isinstance(adapter, LastLayers) and adapter.layers > shape.layers:
        raise ValueError(f"adapter.layers ({adapter.layers}) is more than the model's {shape.layers}; use fewer")
    return replace(shape, adapter=AdaptedLayers.of(adapter, shape.part_widths, model_type))


def why_unpredictable(config: Mapping[str, Any]) -> str | None:
    """Reason why memory and speed cannot be predicted for an architecture; None where both can be."""
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


def _estimate_shape(name: str, model_summary: ModelSummary) -> ModelShape:
    """Estimate of the shape of a model of unknown architecture: a Llama with the same depth, width, vocabulary and
    active block size."""
    hidden, layers = model_summary.hidden_size, len(model_summary.blocks)
    active = (model_summary.active_parameters - model_summary.outside_blocks) / layers
    heads = max(1, hidden // _HEAD_DIM)
    return TracedShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=max(1, hidden // heads),
        # The block's own parameters are 4 h² of attention and 3 h f of a gated MLP (all heads have keys and values).
        ffn=max(hidden, int((active - 4 * hidden**2) / (3 * hidden))),
        vocab=model_summary.vocab_size,
        tied=model_summary.outside_blocks < 2 * model_summary.vocab_size * hidden,
        max_positions=model_summary.max_positions,
        counted=model_summary,
        estimated=True,
    )


def summary_of(shape: ModelShape) -> ModelSummary:
    """Model summary that a worker would report, computed from a model shape: the input of a search space."""
    if isinstance(shape, TracedShape):
        return shape.counted
    # A request may name sizes that no model summary can hold; the shape decides what fits.
    block = BlockSummary(
        name="block",
        parameters=min(shape.block_parameters, MOST_ELEMENTS),
        largest_parameter=min(shape.largest_parameter, MOST_ELEMENTS),
        matrix_parameters=min(shape.matrix_parameters // shape.layers, MOST_ELEMENTS),
        forward_flops_per_token=None,
    )
    return ModelSummary(
        parameters=min(shape.parameters, MOST_ELEMENTS),
        active_parameters=min(shape.active_parameters, MOST_ELEMENTS),
        blocks=(block,) * min(shape.layers, _MOST_BLOCKS),
        block_class="Block",
        moe_class="Experts" if shape.experts > 1 else None,
        forward_flops_per_token=None,
        hidden_size=min(shape.hidden, MOST_ELEMENTS),
        vocab_size=min(shape.vocab, MOST_ELEMENTS),
        max_positions=min(shape.max_positions, MOST_ELEMENTS) if shape.max_positions else None,
        context_heads=shape.context[0],
        context_note=shape.context[1],
        tensor_divisor=shape.tensor[0],
        tensor_note=shape.tensor[1],
        pipeline_blocks=min(shape.pipeline[0], MOST_ELEMENTS) if shape.pipeline[0] else None,
        pipeline_note=shape.pipeline[1],
        experts=min(shape.experts, MOST_ELEMENTS),
        expert_width=min(shape.divisible_experts[1] or 1, MOST_ELEMENTS),
        expert_note=shape.divisible_experts[2],
        mlp_note=EXPERTS if shape.experts > 1 else None,
    )
