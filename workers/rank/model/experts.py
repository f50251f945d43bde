"""Expert parallel: ranks have a part of each layer's experts; tokens go to those of their experts by all-to-all, and back.

As transformers' `AllToAllEP` (5.23) and torchtitan do, of any module with stacked experts that is called as transformers' are.
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
"""What experts take, by position."""
_DIFFERENT = ("ernie4_5_moe",)
"""Model types whose weights differ from one process's in 1e-4 of their sum after three steps (transformers 5.23)."""


class ExpertSizes(NamedTuple):
    """What `ModelSummary` says of it."""

    experts: int
    expert_width: int
    expert_note: str | None


def sizes_of(model: nn.Module) -> ExpertSizes:
    """How many experts ranks can divide and by what each can be, and why none can."""
    try:
        layers = of(model)
    except ValueError as error:
        return ExpertSizes(1, 1, str(error))
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    return ExpertSizes(parameters[0].shape[0], math.gcd(*(one.shape[1] for one in parameters)), None)


def of(model: nn.Module) -> list[nn.Module]:
    """The modules with a model's stacked experts, in order.

    Raises:
        ValueError: why there is none that ranks can divide, as the end of a sentence.
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
    """Experts of a layer.

    Raises:
        ValueError: as `of`.
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
    """Make experts' parameters DTensors over the mesh, still without values, and have tokens exchanged; returns their modules.

    Raises:
        ValueError: as `of`.
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
    """The forward pass of a layer's experts, of which each rank of a mesh has as many."""

    def __init__(self, layer: nn.Module, mesh: DeviceMesh) -> None:
        """Before the layer's own forward is replaced."""
        self._layer, self._run = layer, layer.forward
        self._group, self._ranks = mesh.get_group(), mesh.size()
        whole: Any = layer.num_experts
        self.local: int = whole // self._ranks

    def __call__(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Of tokens [n, width], experts [n, k] and weights [n, k] it makes [n, width]."""
        chosen = top_k_index.flatten()
        # By expert, and so by rank, each of which has a range of them.
        order = chosen.argsort()
        to, come, numbers = self._announce(chosen)
        rows = _exchanged(hidden_states[order // top_k_index.shape[-1]], come, to, self._group)
        with _local_parameters(self._layer):
            visited = self._visit(rows, numbers)
        back = _exchanged(visited, to, come, self._group)[order.argsort()]
        weighted = back.view(*top_k_index.shape, -1) * top_k_weights.unsqueeze(-1)
        return weighted.sum(dim=1).to(hidden_states.dtype)

    def _announce(self, chosen: torch.Tensor) -> tuple[list[int], list[int], torch.Tensor]:
        """Rows to each rank and from each, and the own experts that the latter are for; waits for the device."""
        sent = torch.zeros(self._ranks * self.local, dtype=torch.int64, device=chosen.device)
        sent.scatter_add_(0, chosen, torch.ones_like(chosen))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        to, come = torch.stack([sent, received]).view(2, self._ranks, self.local).sum(dim=2).tolist()
        numbers = torch.arange(self.local, device=chosen.device).repeat(self._ranks)
        return to, come, numbers.repeat_interleave(received, output_size=sum(come))

    def _visit(self, rows: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """The own experts' work on rows that came; weights are where the rows came from."""
        if len(rows):
            return self._own(rows, numbers)
        # Backward has to come by: peers wait for gradients of this rank's parameters.
        return self._own(rows.sum(dim=0, keepdim=True), numbers.new_zeros(1))[:0]

    def _own(self, rows: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._run(rows, numbers.unsqueeze(-1), torch.ones_like(rows[:, :1]))
        return found


def _exchanged(rows: torch.Tensor, come: list[int], to: list[int], group: dist.ProcessGroup) -> torch.Tensor:
    """Rows `to` each rank of a group, of which so many `come` from each."""
    found: torch.Tensor = _AllToAll.apply(rows, come, to, group)  # type: ignore[no-untyped-call]
    return found


class _AllToAll(torch.autograd.Function):
    """Rows to other ranks; their gradients come back the same way."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, come: list[int], to: list[int], group: dist.ProcessGroup) -> torch.Tensor:
        ctx.come, ctx.to, ctx.group = come, to, group
        found = rows.new_empty(sum(come), *rows.shape[1:])
        dist.all_to_all_single(found, rows.contiguous(), come, to, group=group)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (theirs,) = gradients
        found = theirs.new_empty(sum(ctx.to), *theirs.shape[1:])
        dist.all_to_all_single(found, theirs.contiguous(), ctx.to, ctx.come, group=ctx.group)
        return found, None, None, None


@contextlib.contextmanager
def _local_parameters(layer: nn.Module) -> Iterator[None]:
    """Within it, a layer's parameters are this rank's experts, as plain tensors that kernels take."""
    held = dict(layer._parameters)
    parts: dict[str, Any] = {name: one.to_local() if isinstance(one, DTensor) else one for name, one in held.items()}
    layer._parameters.update(parts)
    try:
        yield
    finally:
        layer._parameters.update(held)
