"""Runs a stage of a pipeline: the micro batches of a step in the order of a schedule of `torch.distributed.pipelining`."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._backward import stage_backward
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
from torch.distributed.tensor import DTensor

from shardtune.api_schemas.strategies import pipeline_parallel, pipeline_schedules
from shardtune.workers.blocks.prepare import repeated_blocks
from shardtune.workers.rank.model import stage_cut, stage_plan
from shardtune.workers.rank.strategies import base

Sync = Callable[[nn.Module, bool], None]
"""Of a stage, before its backward pass: whether it is the step's last."""


@dataclass(frozen=True)
class RankPart:
    """Of the model, what a rank runs: all of it, or a stage."""

    module: nn.Module
    blocks: list[nn.Module]
    names: Mapping[str, str]
    """Of parameters, in the whole model, where they differ."""
    twins: tuple[str, ...] = ()
    """See `stage_cut.Cut`."""
    index: int = 0
    """Of the stage."""
    width: int | None = None
    """Of the hidden states between stages, where there are several."""

    @classmethod
    def of(
        cls, model: nn.Module, setting: base.Setting, mesh: DeviceMesh | None, virtual: int, schedule: str
    ) -> "list[RankPart]":
        """The stages of a rank of `mesh`, so many and in order; without a mesh the whole model.

        Raises:
            ValueError: it cannot be cut, or the micro batches do not come out.
        """
        blocks = [block for _, block in repeated_blocks(model)]
        if mesh is None:
            return [cls(model, blocks, {})]
        task, ranks = setting.task, mesh.size()
        facts = pipeline_schedules.FACTS[schedule]
        pipeline_parallel.check(ranks, setting.accumulation, task.model)
        plan, note = stage_plan.of(task.model, task.workload)
        count = ranks * virtual
        pipeline_parallel.check_blocks(ranks, len(blocks), note, virtual)
        assert plan is not None
        found = []
        for index in pipeline_schedules.stages_of_rank(mesh.get_local_rank(), ranks, virtual, facts.is_v):
            cut = stage_cut.cut(model, plan, index, count, setting.cast_loss, setting.weights_dtype)
            found.append(cls(cut.module, cut.blocks, cut.names, cut.twins, index, plan.width))
        return found


class Pipeline:
    """The stages of one rank, among those of its mesh."""

    def __init__(
        self, parts: Sequence[RankPart], setting: base.Setting, mesh: DeviceMesh, schedule: str, sync: Sync
    ) -> None:
        """`parts`: of this rank, in order."""
        self._group, self._ranks, self._rank = mesh.get_group(), mesh.size(), mesh.get_local_rank()
        self._device, self._accumulation = setting.place.device, setting.accumulation
        count = self._ranks * len(parts)
        facts = pipeline_schedules.FACTS[schedule]
        self._is_v = facts.is_v
        make = PipelineStage if facts.splits_backward else functools.partial(_synced, sync)
        stages = [_stage(part, count, setting, self._ranks, self._group, make) for part in parts]
        made: Any = get_schedule_class(facts.title)
        self._schedule = made(
            stages[0] if issubclass(made, PipelineScheduleSingle) else stages,
            setting.accumulation,
            loss_fn=lambda loss, _: loss / setting.accumulation,
            scale_grads=False,
        )
        self._batches: list[torch.Tensor] = []

    def take(self, batch: torch.Tensor, last: bool) -> torch.Tensor:
        """Keep a micro batch until the step's last has come, then train on all; returns losses whose mean over the micro batches
        and ranks is the step's: nothing where this stage does not know it."""
        self._batches.append(batch)
        nothing = torch.zeros((), device=self._device)
        if not last:
            return nothing
        tokens = torch.cat(self._batches)
        self._batches.clear()
        losses: list[torch.Tensor] = []
        self._schedule.step(tokens=tokens, target=tokens, losses=losses, return_outputs=False)
        return sum((loss.detach() for loss in losses), nothing) * (self._ranks * self._accumulation)

    @property
    def group(self) -> dist.ProcessGroup:
        """Ranks with the other stages of the same part of the model."""
        return self._group

    def sum_twins(self, twins: Sequence[nn.Parameter]) -> None:
        """Give tied tables, of which the first and the last stage have one each, the gradient of both uses."""
        found = [twin.grad for twin in twins if twin.grad is not None]
        local = [one.to_local() if isinstance(one, DTensor) else one for one in found]
        if self._is_v:
            # Both are the first rank's.
            for first, last in zip(local[: len(local) // 2], local[len(local) // 2 :], strict=True):
                last.copy_(first.add_(last))
            return
        for mine in local:
            if mine.numel():
                mine.add_(self._of_peer(mine.contiguous()))

    def _of_peer(self, mine: torch.Tensor) -> torch.Tensor:
        """What the other end of the pipeline has in its place."""
        peer = dist.get_global_rank(self._group, self._ranks - 1 if self._rank == 0 else 0)
        theirs = torch.empty_like(mine)
        sent = [dist.P2POp(dist.isend, mine, peer, self._group), dist.P2POp(dist.irecv, theirs, peer, self._group)]
        for work in dist.batch_isend_irecv(sent):
            work.wait()
        return theirs


def _stage(
    part: RankPart, count: int, setting: base.Setting, ranks: int, group: dist.ProcessGroup, make: Any
) -> PipelineStage:
    """One of so many that run on the ranks of a group."""
    task = setting.task
    assert part.width is not None
    shape = (task.config.micro_batch, task.workload.sequence_length // (task.config.sharing // ranks), part.width)
    hidden = torch.empty(shape, dtype=setting.weights_dtype, device="meta", requires_grad=True)
    loss = torch.empty((), device="meta", requires_grad=True)
    # Said beforehand: torch would otherwise run the stage once to find out (2.13).
    given, made = () if part.index == 0 else (hidden,), loss if part.index == count - 1 else hidden
    stage: PipelineStage = make(
        part.module, part.index, count, setting.place.device, input_args=given, output_args=(made,), group=group
    )
    return stage


def _synced(sync: Sync, module: nn.Module, *args: Any, **options: Any) -> PipelineStage:
    """A stage that reduces gradients, and frees parameters, when the configuration says so."""
    stage = _ShardedStage(_Hidden(module), *args, **options)
    stage.before_backward = functools.partial(sync, module)
    return stage


class _Hidden(nn.Module):
    """A stage that torch does not see to be under FSDP2: schedules would gather it whole, and keep it so, for several (2.13)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._forward = module.__call__

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        """As the stage."""
        return self._forward(*args, **kwargs)


class _ShardedStage(PipelineStage):
    """A stage under FSDP2 whose gradients are reduced, and parameters freed, when the configuration says so.

    torch's own keeps parameters and gradients whole until the last backward (2.13, `backward_maybe_with_nosync`).
    """

    before_backward: Callable[[bool], None]

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> tuple[tuple[torch.Tensor | None, ...], None]:
        """One whole backward pass."""
        assert backward_type == "full", backward_type
        self.before_backward(last_backward)
        found = stage_backward(bwd_kwargs["stage_output"], bwd_kwargs["output_grads"], bwd_kwargs["input_values"])
        return found, None

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Nothing is left to do."""
