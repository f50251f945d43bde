"""Precision bf16-mixed for DDP, which has no such precision of its own: float32 master weights, computation in a lower
dtype.

Each parameter is parametrized by its own cast, so that forward (and a recomputation in backward) sees the lower
dtype and the gradient flows back to the float32 master: what FSDP2's `MixedPrecisionPolicy(param_dtype)` does.
Buffers stay as they are. `torch.autocast` (the precision bf16-autocast) instead leaves norms, residuals and softmax in float32.
"""

import torch
from torch import nn
from torch.nn.utils import parametrize


class _Cast(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, master: torch.Tensor) -> torch.Tensor:
        return master.to(self.dtype)


def compute_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Make every module of a model read its parameters in `dtype`, while `model.parameters()` still returns the float32
    master weights."""
    owners = [
        (module, name)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.is_floating_point() and parameter.dtype != dtype
    ]
    cast = _Cast(dtype)
    for module, name in owners:
        # `unsafe` only allows the change of dtype; the default check would also run each cast once.
        parametrize.register_parametrization(module, name, cast, unsafe=True)
    _share_classes(model)


def _share_classes(model: nn.Module) -> None:
    """Give modules of the same kind one common class. torch 2.13 makes a new class for each parametrized module;
    Dynamo, which guards on classes, would then compile each block anew and give up after eight."""
    shared: dict[tuple[object, ...], type[nn.Module]] = {}
    for module in model.modules():
        if parametrize.is_parametrized(module):
            assert isinstance(module.parametrizations, nn.ModuleDict)
            key = (type(module).__bases__, *module.parametrizations)
            # torch itself changes `__class__` when it parametrizes; the properties that it adds read the module's own state.
            module.__class__ = shared.setdefault(key, type(module))
