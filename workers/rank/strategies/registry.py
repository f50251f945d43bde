"""Registry of the training backends of a rank, by kind."""

from collections.abc import Callable
from typing import Any

from torch import nn

from shardtune.workers.rank.strategies.base import Trainer, TrainingSetup
from shardtune.workers.rank.strategies.ddp import DdpTrainer
from shardtune.workers.rank.strategies.fsdp1 import Fsdp1Trainer
from shardtune.workers.rank.strategies.fsdp2 import Fsdp2Trainer
from shardtune.workers.rank.strategies.zero import ZeroTrainer

TRAINERS: dict[str, Callable[[nn.Module, TrainingSetup, Any], Trainer]] = {
    "ddp": DdpTrainer,
    "zero": ZeroTrainer,
    "fsdp2": Fsdp2Trainer,
    "fsdp1": Fsdp1Trainer,
}
"""Functions that make a trainer, by backend. Each takes the plain model, the training setup and the strategy of its own
backend."""
