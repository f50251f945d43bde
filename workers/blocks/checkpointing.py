"""Activation checkpointing of a model's repeated blocks, the same for every backend."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from shardtune.api_schemas.strategies import Checkpointing, SelectiveKeeps
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


def _operators(names: Iterable[str]) -> frozenset[Any]:
    # Older torch lacks some of them.
    operators = set()
    for name in names:
        packet, overload = name.split(".")
        if hasattr(torch.ops.aten, packet):
            operators.add(getattr(getattr(torch.ops.aten, packet), overload))
    return frozenset(operators)


SAVED_OPERATORS = _operators(_SAVED_NAMES)
"""Operators whose results selective checkpointing keeps by default. They are matrix products and attention kernels,
which are expensive to recompute."""
_ATTENTION = _operators(name for name in _SAVED_NAMES if name.startswith("_scaled_dot_product"))
_PRODUCTS = SAVED_OPERATORS - _ATTENTION
_ALL_BUT_EXPERTS = SAVED_OPERATORS - _operators(["_grouped_mm.default"])


def _all_products(_context: SelectiveCheckpointContext, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    # A slice of an MLP is restored by its own checkpoint: products kept for it would be kept for nobody.
    return _policy(operator in SAVED_OPERATORS and not mlp_slices.is_running())


def _all_but_experts(
    _context: SelectiveCheckpointContext, operator: Any, *_args: Any, **_kwargs: Any
) -> CheckpointPolicy:
    return _policy(operator in _ALL_BUT_EXPERTS and not mlp_slices.is_running())


def _attention_alone(
    _context: SelectiveCheckpointContext, operator: Any, *_args: Any, **_kwargs: Any
) -> CheckpointPolicy:
    return _policy(operator in _ATTENTION)


class _SecondProducts:
    """Policy for one forward of one block, which keeps attention and every second product: the first, the third, and so
    on."""

    def __init__(self, products: frozenset[Any]) -> None:
        self._products = products
        self._counts = {False: 0, True: 0}
        """Number of products so far in forward, and in its repetition, of which torch asks before 2.13."""

    def __call__(
        self, context: SelectiveCheckpointContext, operator: Any, *_args: Any, **_kwargs: Any
    ) -> CheckpointPolicy:
        if mlp_slices.is_running():
            return _policy(False)
        if operator not in self._products:
            return _policy(operator in _ATTENTION)
        self._counts[context.is_recompute] += 1
        return _policy(self._counts[context.is_recompute] % 2 == 1)


_POLICIES: Mapping[SelectiveKeeps, Callable[[bool], Callable[..., CheckpointPolicy]]] = {
    "products": lambda adds_biases: _all_but_experts if adds_biases else _all_products,
    "second_products": lambda adds_biases: _SecondProducts(_PRODUCTS & _ALL_BUT_EXPERTS if adds_biases else _PRODUCTS),
    "attention": lambda _adds_biases: _attention_alone,
}
"""Functions that return the policy for one forward of one block, by what selective checkpointing keeps. Their argument
says whether the block adds biases to the results of its experts."""


def _policy(is_kept: bool) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


def _contexts(keeps: SelectiveKeeps, adds_biases: bool) -> Any:
    """Contexts of one block's forward and of its repetition: the first keeps results, the second restores them."""
    return create_selective_checkpoint_contexts(_POLICIES[keeps](adds_biases))  # type: ignore[no-untyped-call]


def apply(
    blocks: list[nn.Module], mode: Checkpointing, every: int = 1, keeps: SelectiveKeeps = "products"
) -> list[nn.Module]:
    """Apply activation checkpointing to every `every`-th block: in backward it recomputes the activations that `mode`
    does not keep. `keeps`: results that the mode `selective` keeps. Returns these blocks. Call this before sharding or
    wrapping."""
    if mode == "none":
        return []
    # The forward is replaced, inside the block's hooks, so that FSDP2 gathers once per pass. ZeRO-3 relies on
    # recomputation stopping early (torch's default): run to its end, it would release the last module's weights just
    # before their backward.
    checkpointed = blocks[every - 1 :: every]
    for block in checkpointed:
        contexts = functools.partial(_contexts, keeps, _adds_biases(block))
        block.forward = _checkpointed(block.forward, mode, contexts)
    return checkpointed


def _adds_biases(block: nn.Module) -> bool:
    """Whether the block adds biases to the results of its experts' products, as GPT-OSS does: transformers does so in
    place (5.23, `_grouped_linear`), so that these results cannot be kept."""
    return any(
        getattr(module, "has_bias", False) is True and hasattr(module, "num_experts") for module in block.modules()
    )


def _checkpointed(forward: Callable[..., Any], mode: Checkpointing, contexts: Callable[[], Any]) -> Callable[..., Any]:
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if mode == "selective":
        # Dynamo takes a function of a module here, or a partial one, and nothing else (torch 2.13).
        options["context_fn"] = contexts

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, **options, **kwargs)

    return run
