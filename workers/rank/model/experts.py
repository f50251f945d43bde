"""Expert parallelism: ranks divide each layer's experts, and tokens go to their experts by all-to-all, and back.

The exchange follows transformers' `AllToAllEP` (5.23) and torchtitan, for any module with stacked experts that is called as
transformers' are.
"""

import contextlib
import inspect
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from shardtune.workers.rank.model import moe

_CALLS = (
    ["hidden_states", "top_k_index", "top_k_weights"],
    ["hidden_states", "router_indices", "routing_weights"],
)
"""Names of the arguments that a module of experts must take in its forward pass, so that ranks can divide the experts."""
_DIFFERENT = ("ernie4_5_moe",)
"""Model types for which expert parallelism is disabled. After three steps their weights differ from those of training
in one process by 1e-4 of the weights' sum (transformers 5.23)."""


class ExpertSizes(NamedTuple):
    """Fields of `ModelSummary` that say how a model's experts can be divided among ranks."""

    experts: int
    """Number of experts in a layer; 1 if they cannot be divided among ranks."""
    expert_width: int
    """Greatest common divisor of the widths of the experts' matrices."""
    expert_note: str | None
    """Reason why the experts cannot be divided among ranks; None if they can."""


def sizes_of(model: nn.Module) -> ExpertSizes:
    """Sizes of a model's experts that decide how ranks can divide them, or a note with the reason why they cannot."""
    try:
        layers = of(model)
    except ValueError as error:
        return ExpertSizes(1, 1, str(error))
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    return ExpertSizes(parameters[0].shape[0], math.gcd(*(parameter.shape[1] for parameter in parameters)), None)


def of(model: nn.Module) -> list[nn.Module]:
    """Modules that hold a model's stacked experts, in order.

    Raises:
        ValueError: ranks cannot divide the experts; the message is the end of a sentence, without its beginning.
    """
    config: Any = getattr(model, "config", None)
    if config is not None and config.model_type in _DIFFERENT:
        raise ValueError(f"{config.model_type} trains otherwise with it, for a reason nobody has found")
    pairs = moe.expert_modules(model)
    if not pairs:
        raise ValueError("it has no experts")
    layers = [experts for _, experts in pairs]
    counts = {_count(layer) for layer in layers}
    if len(counts) > 1:
        raise ValueError(f"its layers have different numbers of experts ({', '.join(map(str, sorted(counts)))})")
    return layers


def _count(layer: nn.Module) -> int:
    """Number of experts in a layer.

    Raises:
        ValueError: ranks cannot divide the experts; the message is the end of a sentence, without its beginning.
    """
    if any(list(child.parameters()) for child in layer.children()):
        raise ValueError("its experts are modules of their own, not stacked in one")
    if list(inspect.signature(layer.forward).parameters) not in _CALLS:
        raise ValueError("its experts are not called with tokens, the experts they chose and their weights")
    count = getattr(layer, "num_experts", None)
    shapes = [tuple(parameter.shape) for parameter in layer.parameters()]
    if not isinstance(count, int) or any(len(shape) < 2 or shape[0] != count for shape in shapes):
        raise ValueError("its experts share parameters")
    return count


def divide(model: nn.Module, mesh: DeviceMesh) -> list[nn.Module]:
    """Divide a model's experts among the ranks of a mesh. Their parameters become DTensors, still without values, and
    their forward becomes an exchange of tokens. Returns the modules that hold experts.

    Raises:
        ValueError: ranks cannot divide the experts; the message is the end of a sentence, without its beginning.
    """
    layers = of(model)
    for layer in layers:
        for name, parameter in layer.named_parameters(recurse=False):
            # None: each rank fills its own part later, so nothing is sent.
            part = distribute_tensor(parameter, mesh, [Shard(0)], src_data_rank=None)
            layer.register_parameter(name, nn.Parameter(part, requires_grad=parameter.requires_grad))
        exchange = TokenExchange(layer, mesh)
        # By name, since nn.Module's attributes are typed as tensors and modules.
        vars(layer).update(num_experts=exchange.local, forward=exchange)
    return layers


class TokenExchange:
    """Forward pass of a layer's experts when each rank of a mesh holds an equal part of them."""

    def __init__(self, layer: nn.Module, mesh: DeviceMesh) -> None:
        """Prepare the exchange of tokens for a layer. Call this before the layer's own forward is replaced; the
        exchange keeps and uses it."""
        self._layer, self._run = layer, layer.forward
        self._group, self._ranks = mesh.get_group(), mesh.size()
        expert_count: Any = layer.num_experts
        self.local: int = expert_count // self._ranks

    def __call__(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Compute the layer's outputs, of shape [n, width], from n tokens of that shape, with the k experts that each
        token has chosen and their weights, both [n, k]."""
        chosen = top_k_index.flatten()
        # Sorting by expert sorts by rank, too: each rank has a contiguous range of experts.
        order = chosen.argsort()
        to, come, numbers = self._exchange_counts(chosen)
        rows = _exchanged(hidden_states[order // top_k_index.shape[-1]], come, to, self._group)
        with _local_parameters(self._layer):
            visited = self._apply_experts(rows, numbers)
        back = _exchanged(visited, to, come, self._group)[order.argsort()]
        weighted = back.view(*top_k_index.shape, -1) * top_k_weights.unsqueeze(-1)
        return weighted.sum(dim=1).to(hidden_states.dtype)

    def _exchange_counts(self, chosen: torch.Tensor) -> tuple[list[int], list[int], torch.Tensor]:
        """Tell each rank how many rows it will receive from this one. Returns the numbers of rows to send to each rank
        and to receive from it, and for each received row the number of its expert on this rank."""
        sent = torch.zeros(self._ranks * self.local, dtype=torch.int64, device=chosen.device)
        sent.scatter_add_(0, chosen, torch.ones_like(chosen))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        # `tolist` waits for the device: all-to-all needs the row counts on the host.
        to, come = torch.stack([sent, received]).view(2, self._ranks, self.local).sum(dim=2).tolist()
        numbers = torch.arange(self.local, device=chosen.device).repeat(self._ranks)
        return to, come, numbers.repeat_interleave(received, output_size=sum(come))

    def _apply_experts(self, rows: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Run this rank's experts on the rows that it received. The routing weights are applied later, by the ranks
        that sent the rows."""
        if len(rows):
            return self._run_local(rows, numbers)
        # Without rows, one row of zeros keeps the experts in the graph: peers wait for gradients of this rank's parameters.
        return self._run_local(rows.sum(dim=0, keepdim=True), numbers.new_zeros(1))[:0]

    def _run_local(self, rows: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self._run(rows, numbers.unsqueeze(-1), torch.ones_like(rows[:, :1]))
        return outputs


def _exchanged(rows: torch.Tensor, come: list[int], to: list[int], group: dist.ProcessGroup) -> torch.Tensor:
    """Exchange rows by all-to-all: `to` lists how many rows go to each rank of the group, `come` how many arrive from
    each."""
    received: torch.Tensor = _AllToAll.apply(rows, come, to, group)  # type: ignore[no-untyped-call]
    return received


class _AllToAll(torch.autograd.Function):
    """All-to-all of rows with gradients, which are sent back by the opposite exchange."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, come: list[int], to: list[int], group: dist.ProcessGroup) -> torch.Tensor:
        ctx.come, ctx.to, ctx.group = come, to, group
        received = rows.new_empty(sum(come), *rows.shape[1:])
        dist.all_to_all_single(received, rows.contiguous(), come, to, group=group)
        return received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (gradient,) = gradients
        received = gradient.new_empty(sum(ctx.to), *gradient.shape[1:])
        dist.all_to_all_single(received, gradient.contiguous(), ctx.to, ctx.come, group=ctx.group)
        return received, None, None, None


@contextlib.contextmanager
def _local_parameters(layer: nn.Module) -> Iterator[None]:
    """Context in which a layer has only the experts of this rank as parameters. They are plain tensors, because kernels
    accept no DTensors."""
    parameters = dict(layer._parameters)
    parts: dict[str, Any] = {
        name: parameter.to_local() if isinstance(parameter, DTensor) else parameter
        for name, parameter in parameters.items()
    }
    layer._parameters.update(parts)
    try:
        yield
    finally:
        layer._parameters.update(parameters)
