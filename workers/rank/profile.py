"""What a model is made of, from the meta device: parameters, blocks, and FLOPs of a forward pass."""

from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from api_schemas.models import BlockProfile, ModelProfile, ModelSpec
from api_schemas.workload import Workload
from workers.rank import model as models
from workers.rank import moe


def of(spec: ModelSpec, workload: Workload) -> ModelProfile:
    """Build the model without memory for weights and describe it.

    Raises:
        ValueError: no causal language model of that type, or one without repeated blocks.
    """
    # Eager attention and batched experts are plain matrix products, which the counter sees and the meta device runs.
    counts = {"attention": "eager"}
    model = models.build(spec, workload.model_copy(update=counts), experts=_experts_for(spec)).to("meta")
    blocks = models.repeated_blocks(model)
    flops, by_block = _forward_flops(model, [name for name, _ in blocks], workload.sequence_length)
    pairs = moe.expert_modules(model)
    text = getattr(model, "config").get_text_config()  # noqa: B009 -- nn.Module's attributes are untyped
    return ModelProfile(
        parameters=sum(p.numel() for p in model.parameters()),
        active_parameters=_active_parameters(model, pairs),
        blocks=tuple(_block(name, block, by_block[name]) for name, block in blocks),
        block_class=type(blocks[0][1]).__name__,
        moe_class=type(pairs[0][0]).__name__ if pairs else None,
        forward_flops_per_token=flops,
        hidden_size=int(text.hidden_size),
        vocab_size=int(text.vocab_size),
        max_positions=getattr(text, "max_position_embeddings", None),
    )


def _experts_for(spec: ModelSpec) -> str | None:
    return "batched_mm" if moe.expert_counts(models.config_of(spec)) else None


def _block(name: str, block: nn.Module, flops: float) -> BlockProfile:
    sizes = [p.numel() for p in block.parameters()]
    return BlockProfile(name=name, parameters=sum(sizes), largest_parameter=max(sizes), forward_flops_per_token=flops)


def _active_parameters(model: nn.Module, pairs: list[tuple[nn.Module, nn.Module]]) -> int:
    total = sum(p.numel() for p in model.parameters())
    counts = moe.expert_counts(getattr(model, "config"))  # noqa: B009
    if counts is None:
        return total
    count, active = counts
    in_experts = sum(p.numel() for _, experts in pairs for p in experts.parameters())
    return total - in_experts * (count - active) // count


def _forward_flops(model: nn.Module, blocks: list[str], length: int) -> tuple[float, dict[str, float]]:
    """FLOPs per token of the whole model and of each block, for one sample of that length."""
    tokens = torch.zeros(1, length, dtype=torch.int64, device="meta")
    # Without a mask, transformers looks into the position ids for packed samples, and here they hold no values.
    mask = torch.ones(1, length, dtype=torch.bool, device="meta")
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(input_ids=tokens, attention_mask=mask, use_cache=False)
    counts: dict[str, dict[Any, int]] = counter.get_flop_counts()
    prefix = f"{type(model).__name__}."
    per_block = {name: sum(counts.get(prefix + name, {}).values()) / length for name in blocks}
    return counter.get_total_flops() / length, per_block
