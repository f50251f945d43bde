"""Ranks whose strategy has a planted fault, to show that parity notices."""

import inspect
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._inductor.exc import InductorError

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config
from shardtune.workers.blocks.prepare import repeated_blocks
from shardtune.workers.launch import RESUMES
from shardtune.workers.rank import main
from shardtune.workers.rank.model import float8
from shardtune.workers.rank.strategies.base import TrainingSetup
from shardtune.workers.rank.strategies.ddp import DdpTrainer
from shardtune.workers.rank.strategies.fsdp2 import Fsdp2Trainer
from shardtune.workers.trial_dir import TrialDir
from tests.support.processes import preloaded_forks


class WithoutAllReduce(DdpTrainer):
    """Every micro batch is taken for one that is not the last, so gradients never leave their rank."""

    def micro_step(self, batch: Any, last: bool) -> torch.Tensor:
        return super().micro_step(batch, last=False)


class ScaledTwice(DdpTrainer):
    """Divides the loss by the accumulation twice; Adam hides it, the gradient norm does not."""

    def begin_step(self, micro_batches: int) -> None:
        super().begin_step(micro_batches**2)


class ForgetsOptimizer(DdpTrainer):
    """Goes on with the right weights and moments of zero, as a job does that saves the model only."""

    def load(self, folder: Path) -> None:
        super().load(folder)
        for member in self._optimizer.members:
            member.state.clear()


class ForgetsWeights(DdpTrainer):
    """Goes on with the right moments and the weights it began with."""

    def load(self, folder: Path) -> None:
        begun = [parameter.detach().clone() for parameter in self._parameters]
        super().load(folder)
        with torch.no_grad():
            for parameter, value in zip(self._parameters, begun, strict=True):
                parameter.copy_(value)


class MovesFrozenWeights(DdpTrainer):
    """A frozen matrix takes a step with every update, as under an optimizer that was given all parameters."""

    def __init__(self, model: nn.Module, setting: TrainingSetup, config: DdpConfig) -> None:
        super().__init__(model, setting, config)
        self._frozen = next(p for p in model.parameters() if not p.requires_grad and p.ndim == 2)

    def optimizer_step(self) -> torch.Tensor:
        with torch.no_grad():
            self._frozen.mul_(1.001)
        return super().optimizer_step()


class MovesPackedWeights(DdpTrainer):
    """A 4-bit weight changes with every update, which no checksum of trained weights sees."""

    def __init__(self, model: nn.Module, setting: TrainingSetup, config: DdpConfig) -> None:
        super().__init__(model, setting, config)
        self._packed = [p for p in model.parameters() if p.dtype == torch.uint8][-1]

    def optimizer_step(self) -> torch.Tensor:
        with torch.no_grad():
            self._packed[0, 0] += 1
        return super().optimizer_step()


class LeavesDropoutOn(DdpTrainer):
    """PEFT's adapters drop a tenth of their inputs, as its examples configure them."""

    def __init__(self, model: nn.Module, setting: TrainingSetup, config: DdpConfig) -> None:
        super().__init__(model, setting, config)
        torch.manual_seed(setting.context.rank)
        for module in model.modules():
            if isinstance(dropouts := getattr(module, "lora_dropout", None), nn.ModuleDict):
                dropouts["default"] = nn.Dropout(0.1)


class EqualRows(DdpTrainer):
    """Both ranks train the first rank's samples: the control that a comparison must notice."""

    def micro_step(self, batch: Any, last: bool) -> torch.Tensor:
        dist.broadcast(batch, 0)
        return super().micro_step(batch, last)


class KeepsScales(Fsdp2Trainer):
    """Weights are cast for their gathers by the scales with which training began, whatever the optimizer made of them."""

    def __init__(self, model: nn.Module, setting: TrainingSetup, config: Fsdp2Config) -> None:
        blocks = [block for _, block in repeated_blocks(model)]
        float8.convert(blocks, setting.task.workload.float8, setting.context.device, config.dp_shard)
        super().__init__(model, setting, config)
        self._float8_gather.refresh = lambda: None  # type: ignore[method-assign]


_CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"


class RunsOut(DdpTrainer):
    """Rank 1 has no memory for its second step, and says so as torch's allocator does."""

    def micro_step(self, batch: Any, last: bool) -> torch.Tensor:
        if self._rank == 1 and self._steps == 1:
            self._run_out()
        self._steps += last
        return super().micro_step(batch, last)

    def __init__(self, model: nn.Module, setting: TrainingSetup, config: DdpConfig) -> None:
        super().__init__(model, setting, config)
        self._rank, self._steps = setting.context.rank, 0

    def _run_out(self) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class RunsOutInCublas(RunsOut):
    def _run_out(self) -> None:
        raise RuntimeError(_CUBLAS)


class RunsOutWhileCompiling(RunsOut):
    """Error of a lowering as torch's compiler wraps it: its own error, `from None`."""

    def _run_out(self) -> None:
        try:
            super()._run_out()
        except torch.OutOfMemoryError as error:
            raise InductorError(error, inspect.currentframe()) from None


class RunsOutInALibrary(RunsOut):
    """Error that a library wraps in its own words."""

    def _run_out(self) -> None:
        try:
            super()._run_out()
        except torch.OutOfMemoryError as error:
            raise ValueError("the fused optimizer could not be set up") from error


OUT_OF_MEMORY = {
    "torch's own": RunsOut,
    "of cuBLAS": RunsOutInCublas,
    "wrapped by inductor": RunsOutWhileCompiling,
    "the cause of another": RunsOutInALibrary,
}
FAULTS: dict[str, Any] = OUT_OF_MEMORY | {
    "missing_all_reduce": WithoutAllReduce,
    "wrong_gradient_scale": ScaledTwice,
    "forgotten_optimizer": ForgetsOptimizer,
    "forgotten_weights": ForgetsWeights,
    "frozen_weight_moves": MovesFrozenWeights,
    "packed_weight_moves": MovesPackedWeights,
    "dropout_left_on": LeavesDropoutOn,
    "equal_rows": EqualRows,
    "kept_scales": KeepsScales,
    "none": DdpTrainer,
}


def run_ranks(fault: str, folder: Path) -> None:
    """Both ranks of a trial directory; in one that has been run, they go on in it."""
    resumes = (folder / "rank_0.json").exists()
    if resumes:
        TrialDir(folder).begin_resume_phase()
    preloaded_forks.ranks(_rank, fault, folder, logs=folder, environment={RESUMES: "1"} if resumes else None)


def _rank(fault: str, folder: Path) -> None:
    main.run(folder, lambda model, setting: FAULTS[fault](model, setting, setting.task.config.strategy))
    # As the fork server's ranks end: gloo has hung in what the interpreter winds down.
    sys.stderr.flush()
    os._exit(0)
