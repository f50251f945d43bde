"""Check of the dtype in which optimizers keep their states, after the first step has made them.

A library may keep float32 states although it was asked for lower ones, and a trial would measure another recipe under
the stated name: the memory and the losses would be wrong without a word.
"""

from collections.abc import Iterable

import torch

from shardtune.api_schemas.training.optimizers import AdamW8bit
from shardtune.workers.rank.classify import NumericsError
from shardtune.workers.rank.strategies.base import TrainingSetup

_MOMENTS = ("state1", "state2")
"""Names of bitsandbytes' moments."""
_QUANTISED = 4096
"""Number of elements in a tensor from which on bitsandbytes keeps the tensor's optimizer moments in 8 bits
(`min_8bit_size`)."""


class StateCheck:
    """Check of the dtype of optimizer states in a training whose states are kept in less than float32. It runs once,
    after the first step."""

    def __init__(self, setting: TrainingSetup) -> None:
        workload = setting.task.workload
        precision, self._is_8bit = workload.precision, isinstance(workload.optimizer, AdamW8bit)
        self._is_due = precision.has_low_states or self._is_8bit
        self._name, self._dtype = precision.name, setting.master_dtype

    def after_step(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Compare the dtype of the optimizer states with that of the master weights.

        Raises:
            NumericsError: a state has another dtype.
        """
        if not self._is_due:
            return
        self._is_due = False
        if self._is_8bit:
            require_8bit_moments(optimizers)
            return
        for optimizer in optimizers:
            for name, dtype in kept_dtypes(optimizer).items():
                if dtype != self._dtype:
                    raise NumericsError(
                        f"precision ({self._name}) keeps optimizer states in {self._dtype}, and {type(optimizer).__name__} keeps "
                        f"{name} in {dtype}; use precision 'bf16-mixed', or another backend"
                    )


def require_8bit_moments(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Check that the moments of every tensor that bitsandbytes quantises are in 8 bits.

    Raises:
        NumericsError: moments are in another dtype, or the optimizer has no such moments.
    """
    for optimizer in optimizers:
        for parameter, held in optimizer.state.items():
            dtypes = {name: held[name].dtype for name in _MOMENTS if name in held}
            if len(dtypes) < len(_MOMENTS) or (parameter.numel() >= _QUANTISED and {*dtypes.values()} != {torch.uint8}):
                kept = ", ".join(f"{name} in {dtype}" for name, dtype in dtypes.items()) or "no such moments"
                raise NumericsError(
                    f"optimizer.kind ('adamw-8bit') keeps moments in torch.uint8, and {type(optimizer).__name__} keeps {kept}; use "
                    "adamw, or another backend"
                )


def kept_dtypes(optimizer: torch.optim.Optimizer) -> dict[str, torch.dtype]:
    """Dtypes of the optimizer states that have one value per element, such as the moments, by the state's name. A count
    of steps has one value only, and is left out."""
    states = [(name, state) for held in optimizer.state.values() for name, state in held.items()]
    return {
        name: state.dtype
        for name, state in states
        if isinstance(state, torch.Tensor) and state.numel() > 1 and state.is_floating_point()
    }
