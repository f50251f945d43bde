"""Backend for PyTorch DistributedDataParallel."""

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtune.api_schemas.strategies import DdpConfig
from shardtune.workers.blocks.prepare import repeated_blocks
from shardtune.workers.rank.model import build as models
from shardtune.workers.rank.model import cast
from shardtune.workers.rank.strategies import base, optimizers, sharded_checkpoint
from shardtune.workers.rank.strategies.loss_scale import LossScale
from shardtune.workers.rank.strategies.state_dtypes import StateCheck


class DdpTrainer:
    """Trainer with a full replica of the model on every rank."""

    def __init__(self, model: nn.Module, setting: base.TrainingSetup, config: DdpConfig) -> None:
        workload, place = setting.task.workload, setting.context
        blocks = [block for _, block in repeated_blocks(model)]
        models.materialize(model, place.device, setting.dtype_of, workload.seed, setting.weights_dtype)
        if setting.weights_dtype != setting.master_dtype:
            cast.compute_in(model, setting.weights_dtype)
        self._ddp = DistributedDataParallel(
            model,
            device_ids=[place.device.index] if place.is_cuda else None,
            broadcast_buffers=False,
            **config.to_ddp(),
        )
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = optimizers.make(workload.optimizer, self._parameters, blocks)
        self._state_check, self._loss_scale = StateCheck(setting), LossScale(setting)
        self._max_norm = workload.max_grad_norm
        self._loss = setting.cast_loss
        self._accumulation = setting.accumulation
        self._checkpoint_parts = sharded_checkpoint.CheckpointParts(
            trained_only=setting.saves_trained_only, scaler=self._loss_scale.scaler
        )
        self._sync_every = config.grad_sync == "every"

    def begin_step(self, micro_batches: int) -> None:
        """Average gradients over this number of micro batches (see `Trainer.begin_step`)."""
        self._accumulation = micro_batches

    def micro_step(self, batch: Any, last: bool) -> torch.Tensor:
        """Run forward and backward of one micro batch, as `Trainer.micro_step` describes; returns the mean loss."""
        with contextlib.nullcontext() if last or self._sync_every else self._ddp.no_sync():
            loss = self._loss(self._ddp, batch)
            self._loss_scale.backward(loss / self._accumulation)
        return loss.detach()

    def optimizer_step(self) -> torch.Tensor:
        """Clip and update at the end of a step, as `Trainer.optimizer_step` describes; returns the gradient norm."""
        self._loss_scale.unscale(self._optimizer)
        norm = base.clip_gradients_(self._parameters, self._max_norm)
        self._loss_scale.step(self._optimizer)
        self._state_check.after_step(self._optimizer.members)
        # Views into buckets must survive; setting them to None would make DDP copy gradients back in.
        self._optimizer.zero_grad(set_to_none=not self._ddp.gradient_as_bucket_view)
        return norm

    def parameter_checksum(self) -> tuple[float, float]:
        """Sum and sum of squares of all master weights of the model (see `Trainer.parameter_checksum`); every rank
        holds all parameters, so nothing is reduced."""
        total = base.checksum_of(self._parameters)
        return float(total[0]), float(total[1])

    def save(self, folder: Path) -> None:
        """Write master weights and optimizer state into a folder that all ranks share (see `Trainer.save`)."""
        sharded_checkpoint.save(self._ddp, self._optimizer.members, folder, self._checkpoint_parts)

    def load(self, folder: Path) -> None:
        """Load the master weights and optimizer state of a checkpoint (see `Trainer.load`)."""
        sharded_checkpoint.load(self._ddp, self._optimizer.members, folder, self._checkpoint_parts)

    def close(self) -> None:
        """Release the trainer's resources at the end of the trial (see `Trainer.close`)."""
