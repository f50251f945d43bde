"""Loss of one chunk of tokens and its gradients, and their sums over chunks.

The gradient is written out, with one float32 tensor the size of the logits in place: autograd would have four. The
compiled functions have none: the compiler fuses what lies between the logits and the sum, or the gradient.
"""

import functools
import math
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.functional import cross_entropy, log_softmax

from shardtune.workers.rank.model.loss_plan import LossPlan

IGNORED = -100
"""Label of tokens that do not count in the loss."""
_SWITCHES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
"""Environment variables that switch `torch.compile` off without an error (torch 2.13)."""
COMPILER = "inductor"
"""Backend of `torch.compile` for the functions of a compiled chunk."""
_ROWS = 1024
"""Number of rows of a gradient that a CPU adds to a sum at once."""


def sum_of(logits: torch.Tensor, labels: torch.Tensor, plan: LossPlan) -> torch.Tensor:
    """Sum of the cross entropy over all tokens, computed in float32 from the logits [tokens, vocabulary] as the model's
    head returned them."""
    if isinstance(logits, DTensor):
        # Split by vocabulary: torch's `loss_parallel` knows this operator.
        return cross_entropy(plan.finished(logits).float(), labels, ignore_index=IGNORED, reduction="sum")
    finished, rows = plan.finished(logits), labels.clamp(min=0).unsqueeze(1)
    if _is_cast_as_read(finished):
        lost = -log_softmax(finished, -1, dtype=torch.float32).gather(1, rows)
    else:
        picked = finished.gather(1, rows).float()
        values, largest = _exponentials(finished)
        lost = values.sum(-1, keepdim=True).log() + largest - picked
    return (lost.squeeze(1) * weights_of(labels)).sum()


def gradient_of(logits: torch.Tensor, labels: torch.Tensor, plan: LossPlan, grad: torch.Tensor) -> torch.Tensor:
    """Gradient of the summed cross entropy (as `sum_of` computes it) with respect to the logits, multiplied by `grad`.
    It has the logits' dtype, and may take their memory: the logits are lost."""
    if isinstance(logits, DTensor):
        logits.requires_grad_()
        with torch.enable_grad():
            (of_logits,) = torch.autograd.grad(sum_of(logits, labels, plan), logits, grad)
        return of_logits
    finished = plan.finished(logits)
    if _is_cast_as_read(finished):
        values = log_softmax(finished, -1, dtype=torch.float32).exp_()
    else:
        values, _ = _exponentials(finished)
        values.div_(values.sum(-1, keepdim=True))
    rows = labels.clamp(min=0).unsqueeze(1)
    values.scatter_add_(1, rows, values.new_full(rows.shape, -1.0))
    values.mul_((grad * weights_of(labels)).unsqueeze(1))
    of_logits = plan.gradient(values, logits)
    # Into the logits, which nobody needs any longer: a copy would be one more tensor of their size.
    return of_logits if of_logits.dtype == logits.dtype else logits.copy_(of_logits)


def _is_cast_as_read(logits: torch.Tensor) -> bool:
    """Whether `log_softmax` needs no float32 copy of the logits beside its float32 result."""
    # A GPU's kernel casts bfloat16 and float16 as it reads them, and a CPU casts the whole tensor first.
    return logits.dtype == torch.float32 or logits.device.type != "cpu"


def _exponentials(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Exponentials of bfloat16 or float16 logits [tokens, vocabulary] less the largest logit of their token, in float32,
    and these largest logits [tokens, 1]. Both come from one float32 tensor, changed in place."""
    values = logits.float()
    largest = values.amax(-1, keepdim=True)
    return values.sub_(largest).exp_(), largest


def weights_of(labels: torch.Tensor) -> torch.Tensor:
    """Weight of each token in the sum of the loss: 1, or 0 for a token without a label."""
    return (labels != IGNORED).float()


def with_product(total: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Add the matrix product of one chunk of tokens to the sum over chunks, in float32; returns the new sum."""
    if total is not None and total.dtype == left.dtype and not isinstance(total, DTensor):
        # In place: a product beside the sum would be one more tensor of the head's size.
        return total.addmm_(left, right)
    return added(total, left @ right)


def added(total: torch.Tensor | None, part: torch.Tensor) -> torch.Tensor:
    """Add the gradient from one chunk of tokens to the sum over chunks, in float32; returns the new sum."""
    if total is None:
        return part.float()
    if part.device.type == "cpu" and not isinstance(total, DTensor):
        # On a CPU torch first casts the whole part; a GPU casts each element as it adds it.
        for sum_rows, rows in zip(torch.split(total, _ROWS), torch.split(part, _ROWS), strict=True):
            sum_rows.add_(rows)
        return total
    return total.add_(part)


def require_compiler() -> None:
    """Check that the environment of this process does not switch `torch.compile` off.

    Raises:
        ValueError: it does, so that the loss would run uncompiled.
    """
    for name in _SWITCHES:
        if os.environ.get(name) == "1":
            raise ValueError(
                f"loss_compile (true) compiles nothing while {name} is 1; unset {name}, or set it to false"
            )


def compiled_sum_of(logits: torch.Tensor, labels: torch.Tensor, plan: LossPlan) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of the cross entropy over all tokens, as `sum_of` computes it, by compiled functions.

    Also returns float32 values [tokens, 2] for `compiled_gradient_of`: each token's largest logit, and the logarithm of
    the sum of the exponentials relative to it. With these the gradient needs no sum over the vocabulary.
    """
    part, first = _own_part(logits)
    _mark_lengths(part, labels)
    if not isinstance(logits, DTensor):
        total, scales = _compiled(_sum_and_scales, COMPILER)(part, labels, plan)
        return total, scales
    # Split by vocabulary. The exchanges between ranks stay outside of the compiled functions.
    group = logits.device_mesh.get_group()
    largest = _compiled(_largest, COMPILER)(part, plan)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group)
    _mark_lengths(largest)
    parts = _compiled(_sums_of_part, COMPILER)(part, labels, largest, first, plan)
    dist.all_reduce(parts, group=group)
    logarithm, own = parts[:, 0].log(), parts[:, 1]
    total = ((logarithm - own) * weights_of(labels)).sum()
    total = DTensor.from_local(total, logits.device_mesh, [Replicate()], run_check=False)
    return total, torch.stack([largest, logarithm], 1)


def compiled_gradient_of(
    logits: torch.Tensor, labels: torch.Tensor, plan: LossPlan, grad: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """Overwrite the logits with the gradient of the summed cross entropy with respect to them, multiplied by `grad`, and
    return them. `scales` are the values that `compiled_sum_of` returned for this chunk."""
    part, first = _own_part(logits)
    _mark_lengths(part, labels, scales)
    grad = grad.to_local() if isinstance(grad, DTensor) else grad
    _compiled(_write_gradient, COMPILER)(part, labels, scales, grad, first, plan)
    return logits


def _sum_and_scales(logits: torch.Tensor, labels: torch.Tensor, plan: LossPlan) -> tuple[torch.Tensor, torch.Tensor]:
    values = plan.finished(logits).float()
    largest = values.amax(1)
    logarithm = (values - largest.unsqueeze(1)).exp().sum(1).log()
    own = values.gather(1, labels.clamp(min=0).unsqueeze(1)).squeeze(1) - largest
    return ((logarithm - own) * weights_of(labels)).sum(), torch.stack([largest, logarithm], 1)


def _largest(part: torch.Tensor, plan: LossPlan) -> torch.Tensor:
    """Largest logit of each token within one rank's part of the vocabulary, in float32."""
    return plan.finished(part).float().amax(1)


def _sums_of_part(
    part: torch.Tensor, labels: torch.Tensor, largest: torch.Tensor, first: int, plan: LossPlan
) -> torch.Tensor:
    """Two values [tokens, 2] of each token within one rank's part of the vocabulary, relative to the largest logit: the sum
    of exponentials, and the label's own logit, which is 0 if the label lies in another rank's part. `first` is the first
    word of the part."""
    values = plan.finished(part).float() - largest.unsqueeze(1)
    rows = labels - first
    is_here = (rows >= 0) & (rows < part.shape[1])
    own = values.gather(1, rows.clamp(0, part.shape[1] - 1).unsqueeze(1)).squeeze(1)
    return torch.stack([values.exp().sum(1), torch.where(is_here, own, 0.0)], 1)


def _write_gradient(
    part: torch.Tensor, labels: torch.Tensor, scales: torch.Tensor, grad: torch.Tensor, first: int, plan: LossPlan
) -> None:
    values = plan.finished(part).float()
    values = (values - scales[:, :1] - scales[:, 1:]).exp()
    # A comparison, not a scatter, which the compiler could not fuse with the rest.
    words = torch.arange(first, first + part.shape[1], device=part.device)
    values = values - (words.unsqueeze(0) == labels.unsqueeze(1)).float()
    values = values * (grad * weights_of(labels)).unsqueeze(1)
    # In place: the gradient beside the logits would double what a chunk needs.
    part.copy_(plan.gradient(values, part))


@functools.cache
def _compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """Compile a function by a backend of `torch.compile`. It raises an error where it would run code uncompiled."""
    return torch.compile(function, backend=backend, fullgraph=True)


def _own_part(logits: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Part of the logits [tokens, words] that this rank has, and the first word of the part."""
    if not isinstance(logits, DTensor):
        return logits, 0
    assert logits.placements == (Shard(1),), logits.placements
    mesh = logits.device_mesh
    return logits.to_local(), math.ceil(logits.shape[1] / mesh.size()) * mesh.get_local_rank()


def _mark_lengths(*tensors: torch.Tensor) -> None:
    """Let the compiler treat the number of tokens as a variable, so that chunks of every length share their code. Only
    a chunk of one token has code of its own."""
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
