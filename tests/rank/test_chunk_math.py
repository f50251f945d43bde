"""A chunk's loss and gradient in bfloat16: those of autograd, from one float32 tensor of the logits' size."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from shardtune.workers.rank.model import chunk_math
from shardtune.workers.rank.model.loss_plan import LossPlan

LABELS = torch.tensor([3, chunk_math.IGNORED, 0, 40, 17, 3, chunk_math.IGNORED])
GRAD = torch.tensor(0.25)


class FloatTensors(TorchDispatchMode):
    """Counts the storages of float32 tensors with a number of elements."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements, self.storages = elements, set[int]()
        self._kept: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float32 and result.numel() == self.elements:
            self.storages.add(result.untyped_storage().data_ptr())
            # A freed storage would lend its address to the next tensor.
            self._kept.append(result)
        return result


def logits_of(dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(1)
    return (8 * torch.randn(len(LABELS), 41)).to(dtype)


@pytest.mark.parametrize(
    "plan", [LossPlan(), LossPlan(scale=0.5), LossPlan(cap=5.0)], ids=["plain", "scaled", "capped"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_loss_and_gradient_are_those_of_autograd(plan: LossPlan, dtype: torch.dtype) -> None:
    logits = logits_of(dtype).requires_grad_()
    expected = cross_entropy(plan.finished(logits).float(), LABELS, ignore_index=chunk_math.IGNORED, reduction="sum")
    (slope,) = torch.autograd.grad(expected, logits, GRAD)
    with torch.no_grad():
        total = chunk_math.sum_of(logits.detach(), LABELS, plan)
        gradient = chunk_math.gradient_of(logits.detach().clone(), LABELS, plan, GRAD)
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)
    assert gradient.dtype == dtype
    rounding = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
    assert torch.allclose(gradient.float(), slope.float(), rtol=rounding, atol=rounding * 0.25)


def test_one_float32_tensor_of_the_logits_size_is_enough_on_a_cpu() -> None:
    logits = logits_of(torch.bfloat16)
    with torch.no_grad(), FloatTensors(logits.numel()) as forward:
        chunk_math.sum_of(logits, LABELS, LossPlan())
    with torch.no_grad(), FloatTensors(logits.numel()) as backward:
        chunk_math.gradient_of(logits, LABELS, LossPlan(), GRAD)
    assert (len(forward.storages), len(backward.storages)) == (1, 1)
