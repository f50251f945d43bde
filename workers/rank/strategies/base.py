"""What every backend does for the measuring loop, and what they share: loss, optimizer, norm, sums."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from shardtune.api_schemas.training.workload import AdamW
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.workers.rank.model.build import DTYPES
from shardtune.workers.rank.rank_context import Place


class Trainer(Protocol):
    """One wrapped model with its optimizer.

    A step is `micro_step` once per micro batch of this rank, the last marked, then `optimizer_step`.
    """

    def micro_step(self, batch: Any, last: bool) -> torch.Tensor:
        """Forward and backward of one micro batch; returns its mean loss on the device, detached."""

    def optimizer_step(self) -> torch.Tensor | float:
        """Clip, update, clear gradients; returns the global gradient norm before clipping, without waiting for it."""

    def parameter_checksum(self) -> tuple[float, float]:
        """Sum and sum of squares of all master weights of the whole model, in fp64."""

    def save(self, folder: Path) -> None:
        """Write master weights and optimizer state into a folder that all ranks see. Collective."""

    def load(self, folder: Path) -> None:
        """Take over what an equal trainer has saved, before the first step. Collective."""

    def close(self) -> None:
        """Release what would outlive the process or keep its peers waiting."""


def causal_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Mean next-token cross entropy of one micro batch; transformers computes it in float32 and shifts the labels."""
    loss: torch.Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    return loss


Loss = Callable[[nn.Module, Any], torch.Tensor]
"""Of one micro batch: the mean over its samples, by calling the (wrapped) model."""


@dataclass(frozen=True)
class Setting:
    """What a strategy needs to know besides the model."""

    task: TrialTask
    place: Place
    accumulation: int
    loss: Loss = causal_loss

    @classmethod
    def of(cls, task: TrialTask, place: Place, loss: Loss = causal_loss) -> "Setting":
        """Derive gradient accumulation from the global batch.

        Raises:
            ValueError: the global batch does not come out.
        """
        workload = task.workload
        return cls(task, place, task.config.accumulation(workload.global_batch, place.world_size), loss)

    @property
    def data_rank(self) -> int:
        """Which of the groups that take samples of their own this rank is in."""
        config = self.task.config
        stages = config.strategy.stages
        # Stages lie outermost, so that what is sent most goes between neighbours.
        return self.place.rank % (self.place.world_size // stages) // (config.sharing // stages)

    @property
    def weights_dtype(self) -> torch.dtype:
        """Of the weights that the backend holds for forward and backward."""
        return DTYPES[self.task.workload.precision.weights_dtype]

    @property
    def reduce_dtype(self) -> torch.dtype:
        """Of gradients while they are accumulated and reduced."""
        return DTYPES[self.task.workload.precision.reduce_dtype]

    @property
    def cast_loss(self) -> Loss:
        """`loss`, within the precision's autocast, if it has one."""
        precision, device = self.task.workload.precision, self.place.device.type
        if not precision.autocast:
            return self.loss

        def loss(model: nn.Module, batch: Any) -> torch.Tensor:
            with torch.autocast(device, DTYPES[precision.compute_dtype]):
                return self.loss(model, batch)

        return loss

    @property
    def master_dtype(self) -> torch.dtype:
        """Of the weights the optimizer updates."""
        return DTYPES[self.task.workload.precision.master_dtype]


def adamw_options(settings: AdamW) -> dict[str, Any]:
    """Keyword arguments that torch's AdamW and DeepSpeed's CPU Adam share; weight decay is on all parameters."""
    return {
        "lr": settings.lr,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
    }


def adamw(parameters: Iterable[nn.Parameter], settings: AdamW) -> torch.optim.AdamW:
    """The optimizer of every backend: one pass over memory, and no temporaries the size of the model."""
    groups = [{"params": group} for group in by_mesh(parameters)]
    return torch.optim.AdamW(groups, fused=True, **adamw_options(settings))


def by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Those on one device mesh together: no operator of torch takes tensors of several (2.13)."""
    groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for one in parameters:
        groups.setdefault(one.device_mesh if isinstance(one, DTensor) else None, []).append(one)
    return list(groups.values())


def clip_(
    parameters: list[nn.Parameter],
    max_norm: float | None,
    counted: list[nn.Parameter] | None = None,
    stages: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Clip gradients to a global L2 norm, if one is given; returns the norm before. Does not wait for the device.

    `counted`: those of them that no other of the `stages` counts, over whose ranks the squares are summed.
    """
    norms = [_norm_of(group) for group in by_mesh(parameters if counted is None else counted)]
    norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    if stages is not None:
        squares = norm.square()
        dist.all_reduce(squares, group=stages)
        norm = squares.sqrt()
    if max_norm is not None:
        for group in by_mesh(parameters):
            torch.nn.utils.clip_grads_with_norm_(group, max_norm, norm)
    return norm


def _norm_of(parameters: list[nn.Parameter]) -> torch.Tensor:
    """Of the gradients of parameters on one mesh."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    # Left as a DTensor of partial sums, the norm would be reduced again for every gradient it scales.
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


_SUMMED_AT_ONCE = {"cpu": 1 << 16, "cuda": 1 << 24}
"""Elements widened to fp64 at a time: on the CPU the first checksums lie within the steps whose memory is profiled."""


@torch.no_grad()
def checksum_of(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """fp64 [sum, sum of squares] of all elements, on the CPU."""
    total = torch.zeros(2, dtype=torch.float64)
    for tensor in tensors:
        for part in tensor.detach().flatten().split(_SUMMED_AT_ONCE[tensor.device.type]):  # type: ignore[no-untyped-call]
            wide = part.to(torch.float64)
            total += torch.stack([wide.sum(), wide.dot(wide)]).cpu()
    return total


def reduce_checksum(local: torch.Tensor, place: Place, group: dist.ProcessGroup | None = None) -> tuple[float, float]:
    """Add the shards of all ranks of a group."""
    total = local.to(place.device)
    dist.all_reduce(total, group=group)
    return float(total[0]), float(total[1])
