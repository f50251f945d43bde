"""AdamW of every backend: one fused kernel over parameters of one mesh."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from shardtune.api_schemas.training.optimizers import AdamSettings, AdamW
from shardtune.workers.rank.strategies import base


def options(settings: AdamSettings) -> dict[str, Any]:
    """Keyword arguments that every AdamW takes: torch's, DeepSpeed's CPU Adam and that of bitsandbytes. Weight decay
    applies to all parameters."""
    return {
        "lr": settings.lr,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": settings.weight_decay,
    }


def make(settings: AdamW, parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    """Fused AdamW of torch, which reads and writes memory once and needs no temporary tensors as large as the model."""
    groups = [{"params": group} for group in base.group_by_mesh(parameters)]
    return torch.optim.AdamW(groups, fused=True, **options(settings))


def members(
    settings: AdamW, parameters: list[nn.Parameter], _matrices: list[nn.Parameter], _shard: int
) -> list[torch.optim.Optimizer]:
    """One AdamW for all parameters; an optimizer such as Muon would treat matrices separately."""
    return [make(settings, parameters)]
