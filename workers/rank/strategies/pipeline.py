"""Pipeline parallelism on one rank: runs the micro batches of a step in the order of a schedule of
`torch.distributed.pipelining`."""

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
from shardtune.workers.rank.strategies.exchange_buffers import ExchangeBuffers

Sync = Callable[[nn.Module, bool], None]
"""Callback that runs before a stage's backward pass; its arguments are the stage, and whether the pass is the last one
in the step."""


@dataclass(frozen=True)
class RankPart:
    """Part of the model that a rank runs: the whole model, or one pipeline stage."""

    module: nn.Module
    blocks: list[nn.Module]
    names: Mapping[str, str]
    """Names of parameters in the whole model, by their names in this part, for those parameters whose two names
    differ."""
    twins: tuple[str, ...] = ()
    """Names of tied parameters that the first and the last stage both hold (see `stage_cut.Cut`)."""
    index: int = 0
    """Index of the stage, 0 for the first."""
    width: int | None = None
    """Width of the hidden states that stages exchange; None if the model is not cut into stages."""

    @classmethod
    def of(
        cls, model: nn.Module, setting: base.TrainingSetup, mesh: DeviceMesh | None, virtual: int, schedule: str
    ) -> "list[RankPart]":
        """Cut the pipeline stages of this rank out of the model, in order. Without a mesh, the whole model is the only
        part.

        Args:
            mesh: the ranks of the pipeline; None: there is no pipeline.
            virtual: number of stages per rank.

        Raises:
            ValueError: the model cannot be cut, or the number of micro batches does not fit the stages.
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
        parts = []
        for index in pipeline_schedules.stages_of_rank(mesh.get_local_rank(), ranks, virtual, facts.is_v):
            cut = stage_cut.cut(model, plan, index, count, setting.cast_loss, setting.weights_dtype)
            if cut.twins:
                pipeline_parallel.check_tied(ranks, task.workload.optimizer)
            parts.append(cls(cut.module, cut.blocks, cut.names, cut.twins, index, plan.width))
        return parts


class Pipeline:
    """Pipeline stages of one rank, with the schedule that runs them together with the stages of the other ranks."""

    def __init__(
        self, parts: Sequence[RankPart], setting: base.TrainingSetup, mesh: DeviceMesh, schedule: str, sync: Sync
    ) -> None:
        """Build the pipeline's stages and schedule; `parts` are this rank's stages in order."""
        self._group, self._ranks, self._rank = mesh.get_group(), mesh.size(), mesh.get_local_rank()
        self._device, self._accumulation = setting.context.device, setting.accumulation
        count = self._ranks * len(parts)
        facts = pipeline_schedules.FACTS[schedule]
        self._is_v = facts.is_v
        make = _Stage if facts.splits_backward else functools.partial(make_synced_stage, sync)
        self._stages = [_make_stage(part, count, setting, self._ranks, self._group, make) for part in parts]
        self._schedule_class: Any = get_schedule_class(facts.title)
        self._schedules: dict[int, Any] = {}
        holds_sent = not issubclass(self._schedule_class, PipelineScheduleSingle)
        hidden = _hidden(setting, parts[0], self._ranks)
        self._buffers = ExchangeBuffers(self._stages, setting.accumulation, hidden, holds_sent=holds_sent)
        self._batches: list[torch.Tensor] = []

    def begin_step(self, micro_batches: int) -> None:
        """Prepare the schedule for the next step, which has this many micro batches."""
        self._accumulation = micro_batches
        self._buffers.hold_for(micro_batches)
        for stage in self._stages:
            # A stage bounds micro batches by the schedule that ran first last (2.13); its buffers stay for the largest.
            stage.chunks = max(stage.chunks or 0, micro_batches)
        if micro_batches not in self._schedules:
            self._schedules[micro_batches] = self._schedule_class(
                self._stages[0] if issubclass(self._schedule_class, PipelineScheduleSingle) else self._stages,
                micro_batches,
                # The last stage returns the loss itself. It is divided here, so torch must not scale gradients again.
                loss_fn=lambda loss, _: loss / micro_batches,
                scale_grads=False,
            )

    def run_when_complete(self, batch: torch.Tensor, last: bool) -> torch.Tensor:
        """Collect micro batches; when the step's last one arrives, run the pipeline on all of them.

        Returns a loss whose mean over all micro batches and ranks is the step's loss. It is zero on ranks without the
        last stage, and for all micro batches but the last.
        """
        self._batches.append(batch)
        zero = torch.zeros((), device=self._device)
        if not last:
            return zero
        tokens = torch.cat(self._batches)
        self._batches.clear()
        losses: list[torch.Tensor] = []
        self._schedules[self._accumulation].step(tokens=tokens, target=tokens, losses=losses, return_outputs=False)
        return sum((loss.detach() for loss in losses), zero) * (self._ranks * self._accumulation)

    @property
    def group(self) -> dist.ProcessGroup:
        """Process group of the ranks that hold the other stages of the same replica."""
        return self._group

    def sum_twins(self, twins: Sequence[nn.Parameter]) -> None:
        """Add up the gradients of tied parameters over their two copies, of which the first stage holds one and the
        last stage the other."""
        gradients = [twin.grad for twin in twins if twin.grad is not None]
        local = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
        if self._is_v:
            # A V-shaped schedule puts the first and the last stage on one rank, so both copies are local, the first's first.
            for first, last in zip(local[: len(local) // 2], local[len(local) // 2 :], strict=True):
                last.copy_(first.add_(last))
            return
        for gradient in local:
            if gradient.numel():
                gradient.add_(self._peer_gradient(gradient.contiguous()))

    def _peer_gradient(self, local: torch.Tensor) -> torch.Tensor:
        """Exchange a gradient with the rank at the other end of the pipeline; returns that rank's gradient."""
        peer = dist.get_global_rank(self._group, self._ranks - 1 if self._rank == 0 else 0)
        received = torch.empty_like(local)
        operations = [
            dist.P2POp(dist.isend, local, peer, self._group),
            dist.P2POp(dist.irecv, received, peer, self._group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return received


def _make_stage(
    part: RankPart, count: int, setting: base.TrainingSetup, ranks: int, group: dist.ProcessGroup, make: Any
) -> PipelineStage:
    """Make torch's stage object for one part of the model, with explicit input and output shapes."""
    hidden = _hidden(setting, part, ranks)
    loss = torch.empty((), device="meta", requires_grad=True)
    # Shapes are stated: torch would otherwise run the stage once to learn them (2.13).
    inputs, output = () if part.index == 0 else (hidden,), loss if part.index == count - 1 else hidden
    stage: PipelineStage = make(
        part.module, part.index, count, setting.context.device, input_args=inputs, output_args=(output,), group=group
    )
    return stage


def _hidden(setting: base.TrainingSetup, part: RankPart, ranks: int) -> torch.Tensor:
    """Hidden states of one micro batch as two stages exchange them, on the meta device (without values)."""
    task = setting.task
    assert part.width is not None
    shape = (task.config.micro_batch, task.workload.sequence_length // (task.config.sharing // ranks), part.width)
    return torch.empty(shape, dtype=setting.weights_dtype, device="meta", requires_grad=True)


def make_synced_stage(sync: Sync, module: nn.Module, *args: Any, **options: Any) -> PipelineStage:
    """Make a pipeline stage that reduces its gradients, and frees its parameters, at the times that the configuration
    specifies."""
    stage = _ShardedStage(_OpaqueModule(module), *args, **options)
    stage.before_backward = functools.partial(sync, module)
    return stage


class _OpaqueModule(nn.Module):
    """Wrapper that hides from torch's schedules that a pipeline stage is sharded by FSDP2.

    If a rank has several stages, torch 2.13's schedules would gather such a stage whole and keep it so.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._forward = module.__call__

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        """Run the wrapped stage."""
        return self._forward(*args, **kwargs)


class _Stage(PipelineStage):
    """Pipeline stage that exchanges nothing with its own rank. In a V-shaped schedule, one rank has two neighbouring
    stages; torch 2.11 prepares their communication like that of others, and gloo cannot send to its own rank."""

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        return [operation for operation in super()._get_init_p2p_neighbors_ops() if operation.peer != dist.get_rank()]


class _ShardedStage(_Stage):
    """Pipeline stage under FSDP2 that reduces its gradients, and frees its parameters, at the times that the
    configuration specifies.

    torch's own stage keeps whole parameters and gradients until its last backward pass (2.13,
    `backward_maybe_with_nosync`).
    """

    before_backward: Callable[[bool], None]

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> tuple[tuple[torch.Tensor | None, ...], None]:
        """Run one whole backward pass of the stage, after the callback `before_backward`."""
        assert backward_type == "full", backward_type
        self.before_backward(last_backward)
        gradients = stage_backward(bwd_kwargs["stage_output"], bwd_kwargs["output_grads"], bwd_kwargs["input_values"])
        return gradients, None

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Do nothing: the stage's last backward pass has already reduced the gradients."""
