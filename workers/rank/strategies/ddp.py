"""Backend for PyTorch DistributedDataParallel."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtune.api_schemas.strategies import DdpConfig
from shardtune.workers.blocks.prepare import repeated_blocks
from shardtune.workers.rank.model import build as models
from shardtune.workers.rank.model import cast
from shardtune.workers.rank.strategies import base, optimizers
from shardtune.workers.rank.strategies.loss_scale import LossScale
from shardtune.workers.rank.strategies.wrapped_model import WrappedModel


class DdpTrainer(WrappedModel):
    """Trainer for DDP, with a full replica of the model on every rank."""

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
            find_unused_parameters=setting.task.leaves_parameters_unused,
            **config.to_ddp(),
        )
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = optimizers.make(workload.optimizer, self._parameters, blocks)
        super().__init__(self._ddp, optimizer, setting, LossScale(setting), sync_every=config.grad_sync == "every")

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
        """Sum and sum of squares of all master weights of the model (see `Trainer.parameter_checksum`). No sum over
        ranks is needed, because every rank holds all parameters."""
        total = base.checksum_of(self._parameters)
        return float(total[0]), float(total[1])
