"""Check after each step of a trial with activation offload that what went to host memory came back."""

from pathlib import Path
from typing import Any

import torch

from shardtune.workers.blocks.host_inputs import HostInputs
from shardtune.workers.rank.strategies.base import Trainer


class OffloadingTrainer:
    """Trainer whose checkpointed blocks keep their inputs in host memory. Before each update of weights it checks that
    these inputs were really moved."""

    def __init__(self, trainer: Trainer, inputs: HostInputs) -> None:
        self.inner = trainer
        self.inputs = inputs

    def begin_step(self, micro_batches: int) -> None:
        """Begin a step of this number of micro batches (see `Trainer.begin_step`)."""
        self.inner.begin_step(micro_batches)

    def micro_step(self, batch: Any, last: bool) -> torch.Tensor:
        """Run forward and backward of one micro batch, as `Trainer.micro_step` describes; returns the mean loss."""
        return self.inner.micro_step(batch, last)

    def optimizer_step(self) -> torch.Tensor | float:
        """Check the bytes of the offload, then clip and update, as `Trainer.optimizer_step` describes; returns the
        gradient norm.

        Raises:
            OffloadError: nothing went to host memory, or another number of bytes came back.
        """
        self.inputs.check()
        return self.inner.optimizer_step()

    def parameter_checksum(self) -> tuple[float, float]:
        """Sum and sum of squares of all master weights (see `Trainer.parameter_checksum`)."""
        return self.inner.parameter_checksum()

    def save(self, folder: Path) -> None:
        """Write master weights and optimizer state into a folder that all ranks share (see `Trainer.save`)."""
        self.inner.save(folder)

    def load(self, folder: Path) -> None:
        """Load the state of a trainer of the same configuration (see `Trainer.load`)."""
        self.inner.load(folder)

    def close(self) -> None:
        """Release the trainer's resources (see `Trainer.close`)."""
        self.inner.close()
