"""Dynamic loss scale of `fp16-mixed`: small gradients would vanish in float16, so that the loss is scaled before backward and
gradients are unscaled in float32. A step whose gradients overflow updates nothing, halves the scale, and is known by a
gradient norm that is not finite."""

import torch
import torch.distributed as dist
from torch.amp import GradScaler

from shardtune.workers.rank.strategies.base import TrainingSetup
from shardtune.workers.rank.strategies.optimizers import OptimizerSet


class LossScale:
    """Dynamic loss scale of a trainer, which keeps float16 gradients from underflowing. With a precision that needs no
    scale, the loss is not scaled."""

    def __init__(self, setting: TrainingSetup, *, has_flat_shards: bool = False) -> None:
        """Prepare the scale. `has_flat_shards`: whether gradients are plain tensors that differ between ranks, so that
        they may overflow on some ranks only."""
        kind, scaler = setting.context.device.type, _SharedScaler if has_flat_shards else GradScaler
        self.scaler = scaler(kind) if setting.task.workload.precision.scales_loss else None

    def backward(self, loss: torch.Tensor) -> None:
        """Scale the loss and run its backward pass."""
        scaled = loss if self.scaler is None else self.scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call]

    def unscale(self, optimizers: OptimizerSet) -> None:
        """Divide the gradients by the loss scale; call this before they are clipped."""
        if self.scaler is not None:
            for member in optimizers.members:
                self.scaler.unscale_(member)

    def step(self, optimizers: OptimizerSet) -> None:
        """Update the weights, unless a gradient overflowed on any rank, and adapt the loss scale."""
        if self.scaler is None:
            optimizers.step()
            return
        for member in optimizers.members:
            self.scaler.step(member)
        self.scaler.update()


class _SharedScaler(GradScaler):
    """Gradient scaler with which all ranks skip a step if gradients overflowed on any of them.

    Torch's `ShardedGradScaler` (2.13) reports an overflow as a tensor of shape [1], which the fused AdamW cannot
    subtract from its counts of steps: "output with shape [] doesn't match the broadcast shape [1]".
    """

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        # A rank may have no part of a small model, and must take part all the same.
        overflows = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16) or {
            found_inf.device: found_inf
        }
        for overflow in overflows.values():
            dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
        return overflows
