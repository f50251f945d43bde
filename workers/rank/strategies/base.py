"""Interface between the measuring loop and a training backend, and the code that backends share: loss, norm,
checksum."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from shardtune.api_schemas.training.sample_plan import Split
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.workers.rank.model.build import DTYPES
from shardtune.workers.rank.rank_context import RankContext


class Trainer(Protocol):
    """Wrapped model with its optimizer.

    A step calls `begin_step`, then `micro_step` once for each micro batch of this rank (its argument `last` is true for
    the last of them), then `optimizer_step`.
    """

    def begin_step(self, micro_batches: int) -> None:
        """Begin a step of this many micro batches, over which gradients are averaged. The number may differ from step
        to step."""

    def micro_step(self, batch: Any, last: bool) -> torch.Tensor:
        """Run forward and backward of one micro batch. Returns the micro batch's mean loss as a detached tensor on the
        device."""

    def optimizer_step(self) -> torch.Tensor | float:
        """Clip the gradients, update the weights, and clear the gradients. Returns the gradients' global norm before
        clipping, without waiting for the device."""

    def parameter_checksum(self) -> tuple[float, float]:
        """Sum and sum of squares of all master weights (those that the optimizer updates) of the whole model over all
        ranks, in float64."""

    def save(self, folder: Path) -> None:
        """Save master weights and optimizer state in a folder that all ranks share. All ranks must call this
        together."""

    def load(self, folder: Path) -> None:
        """Load the state that a trainer of the same configuration saved. All ranks must call this together, before the first
        step."""

    def close(self) -> None:
        """Release what the trainer holds and what would otherwise outlive the process or make other ranks wait."""


def causal_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Mean next-token cross entropy of one micro batch; transformers computes it in float32 and shifts the labels."""
    loss: torch.Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    return loss


Loss = Callable[[nn.Module, Any], torch.Tensor]
"""Loss function of one micro batch: calls the (wrapped) model and returns the mean over the batch's samples."""


@dataclass(frozen=True)
class TrainingSetup:
    """Task, rank context and loss function from which a backend builds its trainer."""

    task: TrialTask
    context: RankContext
    accumulation: int
    """Number of micro batches of this rank per optimizer step (gradient accumulation)."""
    loss: Loss = causal_loss

    @classmethod
    def of(cls, task: TrialTask, place: RankContext, loss: Loss = causal_loss) -> "TrainingSetup":
        """Make the setup with as many micro batches per step (gradient accumulation) as the global batch requires.

        Raises:
            ValueError: the global batch is not a multiple of micro batch and data-parallel size.
        """
        workload = task.workload
        return cls(task, place, task.config.accumulation(workload.global_batch, place.world_size), loss)

    @property
    def data_rank(self) -> int:
        """Index of the data-parallel group to which this rank belongs. All ranks of a group train on the same
        samples."""
        config = self.task.config
        stages = config.strategy.stages
        # Pipeline stages are the outermost axis: they send least, so that the busiest collectives run between neighbours.
        return self.context.rank % (self.context.world_size // stages) // (config.sharing // stages)

    @property
    def split(self) -> Split:
        """Division of a step's samples among data-parallel groups, and of each group's samples into micro batches."""
        return self.task.config.split(self.task.workload.global_batch, self.context.world_size)

    @property
    def weights_dtype(self) -> torch.dtype:
        """Dtype of the weights with which the backend computes forward and backward."""
        return DTYPES[self.task.workload.precision.weights_dtype]

    @property
    def reduce_dtype(self) -> torch.dtype:
        """Dtype of gradients while they are accumulated and reduced."""
        return DTYPES[self.task.workload.precision.reduce_dtype]

    @property
    def cast_loss(self) -> Loss:
        """Loss function of this setup. It runs under autocast if the study's precision uses autocast."""
        precision, device = self.task.workload.precision, self.context.device.type
        if not precision.autocast:
            return self.loss

        def loss(model: nn.Module, batch: Any) -> torch.Tensor:
            with torch.autocast(device, DTYPES[precision.compute_dtype]):
                return self.loss(model, batch)

        return loss

    @property
    def master_dtype(self) -> torch.dtype:
        """Dtype of the weights that the optimizer updates."""
        return DTYPES[self.task.workload.precision.master_dtype]

    def dtype_of(self, parameter: nn.Parameter) -> torch.dtype:
        """Dtype in which a backend with master weights stores this parameter: the weights' dtype for frozen weights
        beside an adapter, which have no master copy, and the master dtype for all others."""
        if self.task.workload.adapter is not None and not parameter.requires_grad:
            return self.weights_dtype
        return self.master_dtype

    @property
    def saves_trained_only(self) -> bool:
        """Whether checkpoints leave out frozen weights: an adapter is saved alone, as PEFT does."""
        return self.task.workload.adapter is not None


def group_by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group parameters by device mesh, because no operator of torch 2.13 takes DTensors of different meshes
    together."""
    groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
    return list(groups.values())


def clip_gradients_(
    parameters: list[nn.Parameter],
    max_norm: float | None,
    norm_parameters: list[nn.Parameter] | None = None,
    stages: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Clip gradients to a global L2 norm, if one is configured. Returns the norm before clipping, without waiting for
    the device.

    Args:
        parameters: all parameters of this rank; their gradients are scaled.
        max_norm: largest norm that the gradients may keep; None: they are not clipped.
        norm_parameters: the parameters whose gradients count in the norm; None: all. A parameter that two pipeline
            stages hold must be given on one of them only.
        stages: process group of the pipeline stages, over which the squared norms are summed; None without pipeline
            stages.
    """
    norms = [_norm_of(group) for group in group_by_mesh(parameters if norm_parameters is None else norm_parameters)]
    norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    if stages is not None:
        squares = norm.square()
        dist.all_reduce(squares, group=stages)
        norm = squares.sqrt()
    if max_norm is not None:
        for group in group_by_mesh(parameters):
            torch.nn.utils.clip_grads_with_norm_(group, max_norm, norm)
    return norm


def _norm_of(parameters: list[nn.Parameter]) -> torch.Tensor:
    """L2 norm of the gradients of parameters that share one device mesh."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    # Left as a DTensor of partial sums, the norm would be reduced again for every gradient it scales.
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


_SUMMED_AT_ONCE = {"cpu": 1 << 16, "cuda": 1 << 24}
"""Number of elements that a checksum converts to float64 at a time, by device type. The number is small on the CPU,
where the first checksums are taken while the peak memory of the steps is being measured."""


@torch.no_grad()
def checksum_of(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Sum and sum of squares of all elements of the given tensors, as an fp64 tensor on the CPU."""
    total = torch.zeros(2, dtype=torch.float64)
    for tensor in tensors:
        for part in tensor.detach().flatten().split(_SUMMED_AT_ONCE[tensor.device.type]):  # type: ignore[no-untyped-call]
            wide = part.to(torch.float64)
            total += torch.stack([wide.sum(), wide.dot(wide)]).cpu()
    return total


def reduce_checksum(
    local: torch.Tensor, place: RankContext, group: dist.ProcessGroup | None = None
) -> tuple[float, float]:
    """Add up the parameter checksums of all ranks of a process group; returns the sum of elements and the sum of their
    squares."""
    total = local.to(place.device)
    dist.all_reduce(total, group=group)
    return float(total[0]), float(total[1])
