"""Check whether ranks can divide a model's sequences (context parallelism): traces the attention by a forward pass on
the meta device."""

import inspect
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.workers.blocks.prepare import repeated_blocks
from shardtune.workers.rank.model import build as models
from shardtune.workers.rank.model import moe

_DIFFERENT = ("biogpt", "ernie4_5_moe", "gemma4_unified_text")
"""Model types for which context parallelism is disabled: with sequences divided among ranks they trained differently
(transformers 5.23), for no visible reason.

See `test_every_model_type_that_says_it_can_trains_the_same`.
"""
_PROBE = "shardtune_probe"
_TOKENS = 8


class SharedHeads(NamedTuple):
    """Fields of `ModelSummary` that say whether context parallelism is possible."""

    context_heads: int
    """Greatest common divisor of the numbers of attention heads of all layers. The number of ranks that share a sample
    must divide it."""
    context_note: str | None
    """Reason why ranks cannot divide the model's sequences; None if they can."""


def of(spec: ModelSpec, workload: Workload) -> SharedHeads:
    """Build the model without memory for weights, trace its attention, and return whether ranks can divide its
    sequences."""
    model = models.build(spec, workload, experts=on_meta(spec)).to("meta")
    return of_model(model, models.attention_of(getattr(model, "config"), workload))  # noqa: B009


def on_meta(spec: ModelSpec) -> str | None:
    """Implementation of the experts in a mixture of experts that also runs on the meta device; None for a dense
    model."""
    return "batched_mm" if moe.expert_counts(models.config_of(spec)) else None


def of_model(model: nn.Module, attention: str) -> SharedHeads:
    """Trace the attention of a model on the meta device and return whether ranks can divide its sequences. The
    attention is replaced, so that the model cannot be used afterwards.

    `attention`: implementation of attention that trials would use.
    """
    obstacle = next(_obstacles(model, attention), None)
    if obstacle is None:
        try:
            heads = _heads_of_calls(model)
        except (RuntimeError, TypeError, ValueError, AttributeError, ImportError, KeyError, IndexError) as error:
            obstacle = f"its attention could not be looked at ({' '.join(str(error).split())[:300]})"
        else:
            blocks = len(repeated_blocks(model))
            if len(heads) == blocks:
                return SharedHeads(math.gcd(*(count for pair in heads for count in pair)), None)
            obstacle = f"{len(heads)} of its {blocks} blocks have attention that transformers can replace"
    return SharedHeads(1, obstacle)


def _obstacles(model: nn.Module, attention: str) -> Iterator[str]:
    """Reasons why ranks cannot divide the model's sequences: positions interact outside of attention, or the attention is not
    torch's scaled dot-product attention."""
    config: Any = getattr(model, "config")  # noqa: B009
    if config.model_type in _DIFFERENT:
        yield "it trained something else when this was tried"
    if attention != "sdpa":
        yield f"it is trained with attention {attention!r}, and only sdpa's is shared out"
    if any(getattr(module, "_is_stateful", False) for module in model.modules()):
        yield "it has recurrent layers, which go through a sequence in order"
    if any(isinstance(module, nn.Conv1d) for module in model.modules()):
        yield "it has convolutions, which look at neighbouring positions"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        yield "it cannot be told where in the sequence its tokens are (no position_ids)"
    if not getattr(model, "_can_set_attn_implementation", lambda: False)():
        yield "it has attention of its own, which transformers cannot replace"


def _heads_of_calls(model: nn.Module) -> list[tuple[int, int]]:
    """Numbers of query heads and of key heads in each traced call of attention.

    Raises:
        ValueError: the model passes attention a mask or a bias of its own.
    """
    calls: list[tuple[int, int]] = []

    def record(
        _module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        if attention_mask is not None or options.get("position_bias") is not None:
            raise ValueError("the model makes masks or biases of its own")
        calls.append((query.shape[1], key.shape[1]))
        return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None

    AttentionInterface.register(_PROBE, record)
    AttentionMaskInterface.register(_PROBE, lambda *_, **__: None)
    model.set_attn_implementation(_PROBE)  # type: ignore[operator]
    tokens = torch.zeros(1, _TOKENS, dtype=torch.int64, device="meta")
    positions = torch.arange(_TOKENS, device="meta").unsqueeze(0)
    # Without a mask, transformers looks into the position ids for packed samples, and here they hold no values.
    mask = torch.ones(1, _TOKENS, dtype=torch.bool, device="meta")
    with torch.no_grad():
        model(input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=False)
    return calls
