"""Summary of a model on the meta device: parameters, blocks, and FLOPs of a forward pass."""

from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from shardtune.api_schemas.strategies.fields.mlp_slices import OWN_CODE
from shardtune.api_schemas.training.adapters import AdapterSchema, quantization_of
from shardtune.api_schemas.training.models import BlockSummary, ModelSpec, ModelSummary
from shardtune.api_schemas.training.workload import Workload
from shardtune.workers.blocks import mlp_modules
from shardtune.workers.blocks.prepare import repeated_blocks
from shardtune.workers.rank.model import adapters, experts, loss_plan, moe, shared_heads, stage_plan, tensor_plan
from shardtune.workers.rank.model import build as models
from shardtune.workers.rank.training import step


def of(spec: ModelSpec, workload: Workload) -> ModelSummary:
    """Build the model without memory for weights and return its summary.

    Raises:
        ValueError: transformers has no causal language model of that type.
        UserStepError: the entry point's code is missing or fails.
    """
    if spec.entry_point is not None:
        return of_model(step.of(spec, workload).build_model())
    # Eager attention and batched experts are plain matrix products, which the counter sees and the meta device runs.
    counts = {"attention": "eager"}
    model = models.build(spec, workload.model_copy(update=counts), experts=shared_heads.on_meta(spec)).to("meta")
    pairs, plans = moe.expert_modules(model), _plans(model)
    adapters.install(model, _counted(workload.adapter))
    model_summary = of_model(model)
    text = getattr(model, "config").get_text_config()  # noqa: B009 -- nn.Module's attributes are untyped
    facts = {
        "active_parameters": _active_parameters(model, pairs),
        "moe_class": type(pairs[0][0]).__name__ if pairs else None,
        "hidden_size": int(getattr(text, "hidden_size", 0)),
        "vocab_size": int(getattr(text, "vocab_size", 0)),
        "max_positions": getattr(text, "max_position_embeddings", None),
        "attention": "eager" if models.attention_of(model.config, workload) != workload.attention else None,
    }
    # The products that take a weight's lengths are the same for a batch of any size, and no FLOPs of a token.
    adapters.drop_magnitudes(model)
    facts |= plans | _flop_counts(model, model_summary, workload.attended_length, text)
    # After the counts: it makes the model leave its logits alone.
    facts["loss_note"] = loss_plan.note_of(model)
    # Last: it replaces the model's attention.
    shared = shared_heads.of_model(model, models.attention_of(model.config, workload))
    return model_summary.model_copy(update=facts | shared._asdict())


def _counted(adapter: AdapterSchema | None) -> AdapterSchema | None:
    """Copy of an adapter's settings without quantisation of the base weights. The meta device cannot multiply 4-bit
    weights, and numbers of weights and FLOPs do not depend on it."""
    if quantization_of(adapter) is None:
        return adapter
    assert adapter is not None
    return adapter.model_copy(update={"quantization": None, "double_quantization": False})


def _plans(model: nn.Module) -> dict[str, Any]:
    """Sizes of a model that decide how ranks can split it. They are taken before an adapter adds layers of its own."""
    plans = tensor_plan.widths_of(model)._asdict() | stage_plan.blocks_of(model)._asdict()
    plans |= experts.sizes_of(model)._asdict()
    return plans | {"mlp_note": mlp_modules.note_of([block for _, block in repeated_blocks(model)])}


def _flop_counts(model: nn.Module, model_summary: ModelSummary, length: int, text: Any) -> dict[str, Any]:
    """FLOPs of a forward pass, counted on the meta device; or a note with the reason why they could not be counted.
    Some models read the value of a tensor, and so cannot run there."""
    try:
        flops, by_block = _forward_flops(model, [block.name for block in model_summary.blocks], length)
        least, _ = _forward_flops(model, [], _mean_attended(length, getattr(text, "sliding_window", None)))
        training = _training_flops(model, length) if model_summary.trainable < model_summary.parameters else None
    except (RuntimeError, TypeError, ValueError, AttributeError, ImportError) as error:
        # Trials may work all the same, and report their own failure if not.
        reason = " ".join(str(error).split())[:500]
        return {"note": f"nothing is predicted for this model: its FLOPs could not be counted ({reason})"}
    blocks = [
        block.model_copy(update={"forward_flops_per_token": by_block[block.name]}) for block in model_summary.blocks
    ]
    counts = {"blocks": tuple(blocks), "forward_flops_per_token": flops, "least_flops_per_token": least}
    return counts | {"training_flops_per_token": training}


def of_model(model: nn.Module) -> ModelSummary:
    """Summary of a module's structure, for which the module is not run."""
    blocks = repeated_blocks(model)
    parameters = list(model.parameters())
    total = sum(p.numel() for p in parameters)
    return ModelSummary(
        parameters=total,
        trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
        active_parameters=total,
        blocks=tuple(_block_summary(name, block) for name, block in blocks),
        block_class=type(blocks[0][1] if blocks else model).__name__,
        forward_flops_per_token=None,
        hidden_size=0,
        vocab_size=0,
        max_positions=None,
        loss_note="your own code computes the loss",
        mlp_note=OWN_CODE,
    )


def _block_summary(name: str, block: nn.Module) -> BlockSummary:
    sizes = [p.numel() for p in block.parameters()]
    trained = sum(p.numel() for p in block.parameters() if p.requires_grad)
    return BlockSummary(
        name=name,
        parameters=sum(sizes),
        trainable_parameters=None if trained == sum(sizes) else trained,
        largest_parameter=max(sizes, default=0),
        matrix_parameters=sum(p.numel() for p in block.parameters() if p.ndim == 2),
        forward_flops_per_token=None,
    )


def _active_parameters(model: nn.Module, pairs: list[tuple[nn.Module, nn.Module]]) -> int:
    total = sum(p.numel() for p in model.parameters())
    counts = moe.expert_counts(getattr(model, "config"))  # noqa: B009
    if counts is None:
        return total
    count, active = counts
    in_experts = sum(p.numel() for _, experts in pairs for p in experts.parameters())
    return total - in_experts * (count - active) // count


def _mean_attended(length: int, window: int | None) -> int:
    """Upper bound of the number of positions that a token attends to on average with a causal mask: half the sequence,
    or the attention window if that is less.

    Attention costs as much per token as in an unmasked sequence of this length.
    """
    return max(1, min(length // 2, window or length))


def _forward_flops(model: nn.Module, blocks: list[str], length: int) -> tuple[float, dict[str, float]]:
    """Forward FLOPs per token of the whole model and of each block, for one sample of the given length."""
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


def _training_flops(model: nn.Module, length: int) -> float:
    """FLOPs of the forward and backward pass of one token. Gradients that frozen weights do not need are not
    counted."""
    tokens = torch.zeros(1, length, dtype=torch.int64, device="meta")
    mask = torch.ones(1, length, dtype=torch.bool, device="meta")
    counter = FlopCounterMode(display=False)
    with counter:
        model(input_ids=tokens, attention_mask=mask, use_cache=False).logits.sum().backward()
    model.zero_grad()
    return counter.get_total_flops() / length
