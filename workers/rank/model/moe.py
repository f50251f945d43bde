"""Detection of mixtures of experts in a model by structure: a module that owns stacked expert weights."""

from typing import Any

from torch import nn

# Architectures of transformers have no common name for these; the first one that the configuration has is taken.
_COUNT_NAMES = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_ACTIVE_NAMES = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k", "moe_k")


def expert_counts(config: Any) -> tuple[int, int] | None:
    """Number of experts in a layer, and number of experts that process one token; None for a model without experts."""
    text = config.get_text_config()
    count = next((getattr(text, name) for name in _COUNT_NAMES if isinstance(getattr(text, name, None), int)), None)
    active = next((getattr(text, name) for name in _ACTIVE_NAMES if isinstance(getattr(text, name, None), int)), None)
    return (count, active) if count and active and count > 1 else None


def expert_modules(model: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """Pairs of a mixture-of-experts module and the module within it that holds the experts. The latter is one module of
    stacked weights or a list of modules."""
    counts = expert_counts(getattr(model, "config", None)) if hasattr(model, "config") else None
    if counts is None:
        return []
    pairs = []
    for parent in model.modules():
        for child in parent.children():
            stacked = any(p.dim() == 3 and p.shape[0] == counts[0] for p in child.parameters(recurse=False))
            listed = isinstance(child, nn.ModuleList) and len(child) == counts[0] and "xpert" in type(child[0]).__name__
            if stacked or listed:
                pairs.append((parent, child))
    return pairs


def classes_in(model: nn.Module) -> list[type[nn.Module]]:
    """Distinct classes of a model's mixture-of-experts modules (each with router and experts); empty for a dense
    model."""
    return list(dict.fromkeys(type(parent) for parent, _ in expert_modules(model)))
