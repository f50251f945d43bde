"""Fused attention in traces: what a GPU's kernels fuse and the CPU's do not counts as one fused kernel.

The CPU's fused kernel takes no dropout, no mask that requires a gradient and no value of another width than the query. It
then computes in steps that keep all scores, several times the memory that GPUs need.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
# The operator that torch keeps for kernels of other devices: it exists for tensors without values, with its backward.
_FUSED = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default


@contextlib.contextmanager
def as_on_gpus() -> Iterator[None]:
    """Context in which attention on fake tensors (tensors without values) is recorded as a GPU's fused attention kernel
    would compute it."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        # Below autocast, so that operands have the dtype of the kernel; above the recorder, which sees the kernel.
        library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
        yield


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    fits = _fits(query, key, value, attn_mask, enable_gqa) and not (is_causal and attn_mask is not None)
    if not fits or _cpu_fuses(query, value, attn_mask, dropout_p):
        result: Tensor = _ATTENTION._op_dk(
            torch._C.DispatchKey.CompositeImplicitAutograd,
            *(query, key, value, attn_mask, dropout_p, is_causal),
            scale=scale,
            enable_gqa=enable_gqa,
        )
        return result
    if key.shape[1] != query.shape[1]:
        key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], 1) for part in (key, value))
    bias = _bias(attn_mask, query, key)
    fused: Tensor = _FUSED(query, key, value, bias, dropout_p, is_causal, False, scale=scale)[0]
    return fused


def _fits(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, grouped: bool) -> bool:
    """Whether a GPU has a fused attention kernel for these operands, and at least one of them is a fake tensor (without
    values)."""
    operands = (query, key, value)
    if not any(isinstance(operand, FakeTensor) for operand in operands):
        return False
    if any(operand.dim() != 4 or operand.dtype != query.dtype or 0 in operand.shape for operand in operands):
        return False
    if query.dtype == torch.float64 or query.shape[-1] != key.shape[-1] or key.shape[2] != value.shape[2]:
        return False
    if mask is not None and mask.dtype not in (torch.bool, query.dtype):
        return False
    heads = {operand.shape[1] for operand in operands[1:]}
    divides = all(query.shape[1] % count == 0 for count in heads) if grouped else heads == {query.shape[1]}
    return divides and len({operand.shape[0] for operand in operands}) == 1


def _cpu_fuses(query: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> bool:
    """Whether the CPU's own fused attention kernel accepts these operands, by the rules of torch 2.13."""
    trains_mask = mask is not None and mask.requires_grad and torch.is_grad_enabled()
    return dropout == 0 and value.shape[-1] == query.shape[-1] and not trains_mask


def _bias(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Attention mask in the form that attention kernels take: a bias that is added to the scores, expanded to every
    sample and head without a copy."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), float("-inf"))
    return mask.expand(*query.shape[:3], key.shape[2])
