"""Registry of optimizers by kind, and the set of torch optimizers that a trainer steps together."""

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from shardtune.api_schemas.training.optimizers import OPTIMIZERS, OptimizerSchema
from shardtune.workers.rank.strategies.optimizers import adamw, adamw_8bit, adamw_bf16, muon

Maker = Callable[[Any, list[nn.Parameter], list[nn.Parameter], int], list[torch.optim.Optimizer]]
"""Function that makes the torch optimizers of a trial. Its arguments are the settings, all trained parameters, those of
them that are matrices of blocks, and the index of this rank's shard (see `make`)."""

MAKERS: Mapping[str, Maker] = {
    "adamw": adamw.members,
    "adamw-8bit": adamw_8bit.members,
    "adamw-bf16": adamw_bf16.members,
    "muon": muon.members,
}


@dataclass(frozen=True)
class OptimizerSet:
    """Torch optimizers that together update one model; each has its own part of the parameters."""

    members: tuple[torch.optim.Optimizer, ...]

    def step(self) -> None:
        """Update all parameters."""
        for member in self.members:
            member.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all parameters."""
        for member in self.members:
            member.zero_grad(set_to_none=set_to_none)


def installed_kinds() -> list[str]:
    """Kinds of optimizers that packages other than torch provide, limited to the packages that are installed."""
    packages = {kind: settings.package for kind, settings in OPTIMIZERS.items()}
    return [kind for kind, package in packages.items() if package and importlib.util.find_spec(package)]


def make(
    settings: OptimizerSchema, parameters: Iterable[nn.Parameter], blocks: Iterable[nn.Module] = (), shard: int = 0
) -> OptimizerSet:
    """Make the optimizers of a trial.

    Args:
        blocks: the model's repeated blocks, as the backend has wrapped them.
        shard: index of this rank's part of parameters that are plain tensors; equal on ranks that hold the same part.

    Raises:
        ValueError: the optimizer updates matrices, and the blocks have none.
    """
    trained = list(parameters)
    in_blocks = {id(parameter) for block in blocks for parameter in block.parameters() if parameter.ndim == 2}
    matrices = [parameter for parameter in trained if id(parameter) in in_blocks]
    if settings.needs_matrices and not matrices:
        raise ValueError(
            f"optimizer.kind ({settings.kind!r}) found no matrix in the model's repeated blocks; use adamw"
        )
    return OptimizerSet(tuple(MAKERS[settings.kind](settings, trained, matrices, shard)))
