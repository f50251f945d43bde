"""Runs a stage of a pipeline: the micro batches of a step in the order of a schedule of `torch.distributed.pipelining`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining._backward import stage_backward
from torch.distributed.tensor import DTensor

from shardtune.api_schemas import pipeline_parallel
from shardtune.workers.blocks.prepare import repeated_blocks
from shardtune.workers.rank.model import stage_cut, stage_plan
from shardtune.workers.rank.strategies import base

_SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


@dataclass(frozen=True)
class RankPart:
    """Of the model, what a rank runs: all of it, or a stage."""

    module: nn.Module
    blocks: list[nn.Module]
    names: Mapping[str, str]
    """Of parameters, in the whole model, where they differ."""
    twins: tuple[str, ...] = ()
    """See `stage_cut.Cut`."""
    is_first: bool = True
    width: int | None = None
    """Of the hidden states between stages, where there are several."""

    @classmethod
    def of(cls, model: nn.Module, setting: base.Setting, mesh: DeviceMesh | None) -> "RankPart":
        """`mesh`: of the stages. The model is cut in place.

        Raises:
            ValueError: it cannot be cut, or the micro batches do not come out.
        """
        blocks = [block for _, block in repeated_blocks(model)]
        if mesh is None:
            return cls(model, blocks, {})
        task, stages, index = setting.task, mesh.size(), mesh.get_local_rank()
        pipeline_parallel.check(stages, setting.accumulation, task.model)
        plan, note = stage_plan.of(task.model, task.workload)
        pipeline_parallel.check_blocks(stages, len(blocks), note)
        assert plan is not None
        cut = stage_cut.cut(model, plan, index, stages, setting.cast_loss, setting.weights_dtype)
        return cls(cut.module, cut.blocks, cut.names, cut.twins, index == 0, plan.width)


class Pipeline:
    """A stage of one rank, among those of its mesh."""

    def __init__(
        self,
        stage: nn.Module,
        setting: base.Setting,
        mesh: DeviceMesh,
        schedule: str,
        width: int,
        before_backward: Callable[[bool], None],
    ) -> None:
        """`width`: of the hidden states between stages; `before_backward` is told whether it is the step's last."""
        task, place = setting.task, setting.place
        self._index, self._stages = mesh.get_local_rank(), mesh.size()
        self._group, self._device = mesh.get_group(), place.device
        self._accumulation = setting.accumulation
        sharing = task.config.sharing // self._stages
        shape = (task.config.micro_batch, task.workload.sequence_length // sharing, width)
        hidden = torch.empty(shape, dtype=setting.weights_dtype, device="meta", requires_grad=True)
        is_first, is_last = self._index == 0, self._index == self._stages - 1
        run = _ShardedStage(
            stage,
            self._index,
            self._stages,
            place.device,
            # Said beforehand: torch would otherwise run the stage once to find out (2.13).
            input_args=() if is_first else (hidden,),
            output_args=(torch.empty((), device="meta", requires_grad=True) if is_last else hidden,),
            group=self._group,
        )
        run.before_backward = before_backward
        self._schedule = _SCHEDULES[schedule](
            run, setting.accumulation, loss_fn=lambda loss, _: loss / setting.accumulation, scale_grads=False
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
        return sum((loss.detach() for loss in losses), nothing) * (self._stages * self._accumulation)

    @property
    def group(self) -> dist.ProcessGroup:
        """Ranks with the other stages of the same part of the model."""
        return self._group

    def sum_twins(self, twins: Sequence[nn.Parameter]) -> None:
        """Give tied tables, of which the first and the last stage have one each, the gradient of both uses."""
        for twin in twins:
            if twin.grad is None:
                continue
            mine = twin.grad.to_local() if isinstance(twin.grad, DTensor) else twin.grad
            if mine.numel():
                mine.add_(self._of_peer(mine.contiguous()))

    def _of_peer(self, mine: torch.Tensor) -> torch.Tensor:
        """What the other end of the pipeline has in its place."""
        peer = dist.get_global_rank(self._group, self._stages - 1 if self._index == 0 else 0)
        theirs = torch.empty_like(mine)
        sent = [dist.P2POp(dist.isend, mine, peer, self._group), dist.P2POp(dist.irecv, theirs, peer, self._group)]
        for work in dist.batch_isend_irecv(sent):
            work.wait()
        return theirs


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
