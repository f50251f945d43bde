"""Cross entropy in chunks of tokens, computed inside the output head's own forward, so that the logits of all tokens
never exist at once.

Hooks of FSDP and ZeRO-3 gather a module's weight around its forward. They see one call of the head here, and so gather
its weight once, on each rank alike, however many chunks there are.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear, pad

from shardtune.workers.blocks.prepare import forbid_eager_blocks
from shardtune.workers.rank.model import chunk_math
from shardtune.workers.rank.model.chunk_math import IGNORED
from shardtune.workers.rank.model.loss_plan import LossPlan


@dataclass
class ChunkedLoss:
    """Sum of the cross entropy over the tokens of a micro batch, computed by a model's output head."""

    plan: LossPlan
    chunk: int
    """Number of tokens in a chunk, whose logits are in memory at the same time."""
    is_compiled: bool = False
    """Whether the cross entropy of each chunk and its gradient are compiled."""
    labels: torch.Tensor | None = None
    """Labels [samples, positions] of the micro batch that is in its forward pass; None between forward passes."""

    def mean(self, model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        """Mean next-token cross entropy of one micro batch, as transformers computes it from all logits."""
        samples, length = tokens.shape
        labels = pad(tokens, (0, 1), value=IGNORED)[:, 1:]
        return self.sum_over(model, labels, input_ids=tokens) / (samples * (length - 1))

    def sum_over(self, model: nn.Module, labels: torch.Tensor, **inputs: Any) -> torch.Tensor:
        """Run the model and return the sum of the cross entropy over all tokens whose label is not `IGNORED`.

        The caller divides the sum by the number of labels in the whole batch. If each chunk divided by its own number
        of labels, tokens in chunks with few labels would count too much.
        """
        self.labels = labels
        try:
            total: torch.Tensor = model(**inputs, use_cache=False).logits
            return total
        finally:
            # A pipeline stage before the last leaves its forward pass by an exception and never takes them.
            self.labels = None


class ChunkedHead(nn.Linear):
    """Output head that returns the summed loss in place of logits while labels are set."""

    loss: ChunkedLoss

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return logits, or the sum of the loss if `ChunkedLoss.sum_over` has set labels."""
        labels = self.loss.labels
        if labels is None:
            return super().forward(input)
        # Read once: with DDP's mixed precision each access casts the weight anew.
        weight: torch.Tensor = self.weight
        bias: torch.Tensor | None = self.bias
        hidden = input
        device = hidden.device.type
        if torch.is_autocast_enabled(device):
            # Backward runs outside of autocast, so it must find the dtype that forward had.
            dtype = torch.get_autocast_dtype(device)
            hidden, weight = hidden.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        function = _CompiledLoss if self.loss.is_compiled else _SummedLoss
        total: torch.Tensor = function.apply(  # type: ignore[no-untyped-call]
            hidden.flatten(0, -2), weight, bias, labels.flatten(), self.loss.chunk, self.loss.plan
        )
        return total


def install(model: nn.Module, plan: LossPlan, chunk: int, *, is_compiled: bool = False) -> ChunkedLoss:
    """Make a model's output head compute the loss in chunks of tokens, in place. Call this before the model is wrapped
    or sharded. `is_compiled`: whether each chunk's cross entropy is compiled.

    Raises:
        ValueError: the environment switches the compiler off.
    """
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    loss = ChunkedLoss(plan, chunk, is_compiled)
    if is_compiled:
        chunk_math.require_compiler()
        forbid_eager_blocks()
    plan.leave_logits_alone(model)
    # The class, not the module, is replaced: names, ties and hooks of its parameters stay.
    head.__class__ = ChunkedHead
    head.loss = loss
    return loss


def _chunks(hidden: torch.Tensor, labels: torch.Tensor, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Hidden states [tokens, width] and labels of each chunk of tokens."""
    return zip(torch.split(hidden, size), torch.split(labels, size), strict=True)


class _SummedLoss(torch.autograd.Function):
    """Autograd function for the sum of the loss over chunks of tokens. Its backward computes the logits of each chunk
    again.

    The head's gradient is added up over chunks in float32 and rounded once. Autograd would add it up in the weight's
    own dtype, which in bfloat16 loses bits with every chunk.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        chunk: int,
        plan: LossPlan,
    ) -> torch.Tensor:
        ctx.save_for_backward(hidden, weight, bias, labels)
        ctx.chunk, ctx.plan = chunk, plan
        sums = [
            chunk_math.sum_of(linear(part, weight, bias), own_labels, plan)
            for part, own_labels in _chunks(hidden, labels, chunk)
        ]
        return torch.stack(sums).sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        def gradient_of(logits: torch.Tensor, labels: torch.Tensor, _number: int) -> torch.Tensor:
            return chunk_math.gradient_of(logits, labels, ctx.plan, grad)

        return _gradients(ctx, gradient_of)


class _CompiledLoss(torch.autograd.Function):
    """Autograd function like `_SummedLoss`, with each chunk's cross entropy and its gradient compiled. The products with
    the output head are not: a compiler would call the same kernels for them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        chunk: int,
        plan: LossPlan,
    ) -> torch.Tensor:
        sums, scales = [], []
        for part, own_labels in _chunks(hidden, labels, chunk):
            # A copy of the labels: Dynamo would specialise on the length of the tensor of which they are a view.
            total, own_scales = chunk_math.compiled_sum_of(linear(part, weight, bias), own_labels.clone(), plan)
            sums.append(total)
            scales.append(own_scales)
        ctx.save_for_backward(hidden, weight, bias, labels, *scales)
        ctx.chunk, ctx.plan = chunk, plan
        return torch.stack(sums).sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        scales = ctx.saved_tensors[4:]

        def gradient_of(logits: torch.Tensor, labels: torch.Tensor, number: int) -> torch.Tensor:
            return chunk_math.compiled_gradient_of(logits, labels.clone(), ctx.plan, grad, scales[number])

        return _gradients(ctx, gradient_of)


def _gradients(
    ctx: Any, gradient_of: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of the summed loss with respect to the inputs of an autograd function of this module. `gradient_of`
    returns the gradient with respect to a chunk's logits, from the logits, the labels and the number of the chunk."""
    hidden, weight, bias, labels = ctx.saved_tensors[:4]
    wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
    of_hidden, of_weight, of_bias = [], None, None
    for number, (part, own_labels) in enumerate(_chunks(hidden, labels, ctx.chunk)):
        of_logits = gradient_of(linear(part, weight, bias), own_labels, number)
        if wants_hidden:
            of_hidden.append(of_logits @ weight)
        if wants_weight:
            of_weight = chunk_math.with_product(of_weight, of_logits.t(), part)
        if wants_bias:
            of_bias = chunk_math.added(of_bias, of_logits.sum(0))
        # Before the next chunk's logits: two chunks' would be the peak.
        del of_logits
    return (
        torch.cat(of_hidden) if wants_hidden else None,
        None if of_weight is None else of_weight.to(weight.dtype),
        None if of_bias is None or bias is None else of_bias.to(bias.dtype),
        None,
        None,
        None,
    )
