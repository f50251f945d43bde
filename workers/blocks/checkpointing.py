"""Activation checkpointing of a model's repeated blocks, the same for every backend."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from shardtune.api_schemas.strategies import Checkpointing
from shardtune.workers.blocks import mlp_slices

_SAVED_NAMES = (
    "mm.default",
    "addmm.default",
    "bmm.default",
    "baddbmm.default",
    "_grouped_mm.default",
    "_scaled_dot_product_efficient_attention.default",
    "_scaled_dot_product_flash_attention.default",
    "_scaled_dot_product_flash_attention_for_cpu.default",
    "_scaled_dot_product_cudnn_attention.default",
    "_scaled_dot_product_attention_math.default",
    "_scaled_dot_product_fused_attention_overrideable.default",
)


def _saved_operators() -> frozenset[Any]:
    # Older torch lacks some of them.
    operators = set()
    for name in _SAVED_NAMES:
        packet, overload = name.split(".")
        if hasattr(torch.ops.aten, packet):
            operators.add(getattr(getattr(torch.ops.aten, packet), overload))
    return frozenset(operators)


SAVED_OPERATORS = _saved_operators()
"""Operators whose results selective checkpointing keeps. They are matrix products and attention kernels, which are
expensive to recompute."""


def _policy(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    # A slice of an MLP is restored by its own checkpoint: products kept for it would be kept for nobody.
    is_kept = operator in SAVED_OPERATORS and not mlp_slices.is_running()
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


def apply(blocks: list[nn.Module], mode: Checkpointing, every: int = 1) -> list[nn.Module]:
    """Apply activation checkpointing to every `every`-th block: in backward it recomputes the activations that `mode`
    does not keep. Returns these blocks. Call this before sharding or wrapping."""
    if mode == "none":
        return []
    # The forward is replaced, inside the block's hooks, so that FSDP2 gathers once per pass. ZeRO-3 relies on
    # recomputation stopping early (torch's default): run to its end, it would release the last module's weights just
    # before their backward.
    checkpointed = blocks[every - 1 :: every]
    for block in checkpointed:
        block.forward = _checkpointed(block.forward, mode)
    return checkpointed


def _checkpointed(forward: Callable[..., Any], mode: Checkpointing) -> Callable[..., Any]:
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if mode == "selective":
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _policy)

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, **options, **kwargs)

    return run
