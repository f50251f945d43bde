"""Loss of one chunk of tokens and its gradients, and their sums over chunks.

The gradient is written out, with one float32 tensor the size of the logits in place: autograd would have four.
"""

import torch
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy, log_softmax

from shardtune.workers.rank.model.loss_plan import LossPlan

IGNORED = -100
"""Label of tokens that do not count in the loss."""


def sum_of(logits: torch.Tensor, labels: torch.Tensor, plan: LossPlan) -> torch.Tensor:
    """Sum of the cross entropy over all tokens, computed in float32 from the logits [tokens, vocabulary] as the model's
    head returned them."""
    if isinstance(logits, DTensor):
        # Split by vocabulary: torch's `loss_parallel` knows this operator.
        return cross_entropy(plan.finished(logits).float(), labels, ignore_index=IGNORED, reduction="sum")
    log_probabilities = log_softmax(plan.finished(logits), -1, dtype=torch.float32)
    picked = log_probabilities.gather(1, labels.clamp(min=0).unsqueeze(1)).squeeze(1)
    return -(picked * weights_of(labels)).sum()


def gradient_of(logits: torch.Tensor, labels: torch.Tensor, plan: LossPlan, grad: torch.Tensor) -> torch.Tensor:
    """Gradient of the summed cross entropy (as `sum_of` computes it) with respect to the logits, multiplied by `grad`.
    It has the logits' dtype."""
    if isinstance(logits, DTensor):
        logits.requires_grad_()
        with torch.enable_grad():
            (of_logits,) = torch.autograd.grad(sum_of(logits, labels, plan), logits, grad)
        return of_logits
    values = log_softmax(plan.finished(logits), -1, dtype=torch.float32).exp_()
    rows = labels.clamp(min=0).unsqueeze(1)
    values.scatter_add_(1, rows, values.new_full(rows.shape, -1.0))
    values.mul_((grad * weights_of(labels)).unsqueeze(1))
    return plan.gradient(values, logits).to(logits.dtype)


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
    return part.float() if total is None else total.add_(part)
