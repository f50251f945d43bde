"""Muon for matrices of blocks, with AdamW for all other parameters."""

import torch
from torch import nn

from shardtune.api_schemas.training.optimizers import Muon
from shardtune.workers.rank.strategies.optimizers import adamw


def members(
    settings: Muon, parameters: list[nn.Parameter], matrices: list[nn.Parameter], _shard: int
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, and AdamW for the other parameters if there are any. Torch's Muon orthogonalises a sharded
    matrix as a whole, and not each shard separately."""
    muon = torch.optim.Muon(
        matrices,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        ns_steps=settings.ns_steps,
        adjust_lr_fn=settings.adjust_lr_fn,
    )
    in_muon = {id(matrix) for matrix in matrices}
    others = [parameter for parameter in parameters if id(parameter) not in in_muon]
    return [muon, adamw.make(settings.adamw, others)] if others else [muon]
