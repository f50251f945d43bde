"""Training with a wrapper of the whole model that reduces gradients in backward unless `no_sync` stops it: DDP, FSDP1."""

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from shardtune.workers.rank.strategies import base, sharded_checkpoint
from shardtune.workers.rank.strategies.loss_scale import LossScale
from shardtune.workers.rank.strategies.optimizers import OptimizerSet
from shardtune.workers.rank.strategies.state_dtypes import StateCheck


class WrappedModel:
    """Part of a trainer that DDP and FSDP1 share: micro batches and checkpoints. Subclasses clip gradients and update
    weights."""

    def __init__(
        self,
        wrapper: DistributedDataParallel | FullyShardedDataParallel,
        optimizer: OptimizerSet,
        setting: base.TrainingSetup,
        loss_scale: LossScale,
        *,
        sync_every: bool,
    ) -> None:
        self._wrapper = wrapper
        self._optimizer = optimizer
        self._state_check, self._loss_scale = StateCheck(setting), loss_scale
        self._max_norm = setting.task.workload.max_grad_norm
        self._loss = setting.cast_loss
        self._accumulation = setting.accumulation
        self._checkpoint_parts = sharded_checkpoint.CheckpointParts(
            trained_only=setting.saves_trained_only, scaler=loss_scale.scaler
        )
        self._sync_every = sync_every

    def begin_step(self, micro_batches: int) -> None:
        """Average gradients over this number of micro batches (see `Trainer.begin_step`)."""
        self._accumulation = micro_batches

    def micro_step(self, batch: Any, last: bool) -> torch.Tensor:
        """Run forward and backward of one micro batch, as `Trainer.micro_step` describes; returns the mean loss."""
        with contextlib.nullcontext() if last or self._sync_every else self._wrapper.no_sync():
            loss = self._loss(self._wrapper, batch)
            self._loss_scale.backward(loss / self._accumulation)
        return loss.detach()

    def save(self, folder: Path) -> None:
        """Write master weights and optimizer state into a folder that all ranks share (see `Trainer.save`)."""
        sharded_checkpoint.save(self._wrapper, self._optimizer.members, folder, self._checkpoint_parts)

    def load(self, folder: Path) -> None:
        """Load the master weights and optimizer state of a checkpoint (see `Trainer.load`)."""
        sharded_checkpoint.load(self._wrapper, self._optimizer.members, folder, self._checkpoint_parts)

    def close(self) -> None:
        """Release the trainer's resources at the end of the trial (see `Trainer.close`)."""
