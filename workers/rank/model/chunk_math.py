"""Loss of one chunk of tokens and its gradients, and their sums over chunks.

The gradient is written out, with one float32 tensor the size of the logits in place: autograd would have four.
"""

import torch
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy, log_softmax

from shardtune.workers.rank.model.loss_plan import LossPlan

IGNORED = -100
"""Label of tokens that do not count in the loss."""

_ROWS = 1024
"""Number of rows of a gradient that a CPU adds to a sum at once."""


def sum_of(logits: torch.Tensor, labels: torch.Tensor, plan: LossPlan) -> torch.Tensor:
    """Sum of the cross entropy over all tokens, computed in float32 from the logits [tokens, vocabulary] as the model's
    head returned them."""
    if isinstance(logits, DTensor):
        # Split by vocabulary: torch's `loss_parallel` knows this operator.
        return cross_entropy(plan.finished(logits).float(), labels, ignore_index=IGNORED, reduction="sum")
    finished, rows = plan.finished(logits), labels.clamp(min=0).unsqueeze(1)
    if finished.dtype == torch.float32:
        lost = -log_softmax(finished, -1).gather(1, rows)
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
    if finished.dtype == torch.float32:
        values = log_softmax(finished, -1).exp_()
    else:
        values, _ = _exponentials(finished)
        values.div_(values.sum(-1, keepdim=True))
    rows = labels.clamp(min=0).unsqueeze(1)
    values.scatter_add_(1, rows, values.new_full(rows.shape, -1.0))
    values.mul_((grad * weights_of(labels)).unsqueeze(1))
    of_logits = plan.gradient(values, logits)
    # Into the logits, which nobody needs any longer: a copy would be one more tensor of their size.
    return of_logits if of_logits.dtype == logits.dtype else logits.copy_(of_logits)


def _exponentials(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Exponentials of bfloat16 or float16 logits [tokens, vocabulary] less the largest logit of their token, in float32,
    and these largest logits [tokens, 1]."""
    # In place: `log_softmax` with a dtype keeps a float32 copy of the logits beside its result.
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
        for sum_rows, rows in zip(total.split(_ROWS), part.split(_ROWS), strict=True):
            sum_rows.add_(rows)
        return total
    return total.add_(part)
