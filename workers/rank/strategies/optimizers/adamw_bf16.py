"""AdamW over bfloat16 weights and moments with stochastic rounding: torch's fused kernel computes a step in float32, and each
result is rounded up or down by chance, so that its mean is exact.

torchao 0.18 has such a step for weights alone (`_AdamW(bf16_stochastic_round=True)`). It rounds moments to nearest, so
that with beta2 above 0.998 the second one never falls. It draws from the default generator of each rank, so that replicas
drift apart. It turns the NaN of GPUs into -0.0, and is compiled for each shape of a parameter.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw as adamw_step

from shardtune.api_schemas.training.optimizers import AdamWBf16
from shardtune.workers.rank.strategies.optimizers import adamw

_PIECE = {"cpu": 1 << 16, "cuda": 1 << 22}
"""Number of elements that are computed in float32 at a time, by device type. Float32 copies of a whole parameter, or of
a whole partition under ZeRO, would take five times the memory of weights and moments."""
_LOWER_BITS = 16
"""Number of bits that a float32 has and a bfloat16 lacks."""


class StochasticAdamW(torch.optim.Optimizer):
    """AdamW that keeps weights and moments in bfloat16 and rounds them stochastically.

    Its random numbers depend only on the step, the parameter and the part of it that this rank holds. Replicas
    therefore draw the same numbers and stay equal, and a training that was resumed from a checkpoint draws the same
    numbers as an uninterrupted one.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], shard: int = 0, **options: Any) -> None:
        """Make the optimizer. `shard`: index of this rank's part of the parameters if these are plain tensors; a
        DTensor itself knows which part a rank holds. `options`: options of torch's AdamW."""
        super().__init__(parameters, options)
        self._shard = shard
        self._streams: dict[torch.Tensor, int] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                # DeepSpeed replaces parameters by partitions after the optimizer was made, and steps some of them alone.
                stream = self._streams.setdefault(parameter, len(self._streams))
                if parameter.grad is not None:
                    self._update(group, parameter, parameter.grad, stream)

    def _update(self, options: dict[str, Any], parameter: torch.Tensor, gradient: torch.Tensor, stream: int) -> None:
        state = self.state[parameter]
        if not state:
            if parameter.dtype != torch.bfloat16:
                raise ValueError(
                    f"optimizer.kind ('adamw-bf16') rounds bfloat16 weights, and a weight is in {parameter.dtype}; use adamw"
                )
            # On the host: its value is read in each step, which would wait for a device.
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        step = int(state["step"])
        weights, grads, *moments = (
            _local(tensor) for tensor in (parameter, gradient, state["exp_avg"], state["exp_avg_sq"])
        )
        # Integers hash alike in every process.
        seed = hash((step, stream, *_part(parameter, self._shard)))
        generator = torch.Generator(weights.device).manual_seed(seed)
        for kept in zip(*_pieces((weights, grads, *moments)), strict=True):
            values = [piece.to(torch.float32, memory_format=torch.contiguous_format) for piece in kept]
            _step_in_float32(options, values, step)
            for index in (0, 2, 3):
                round_by_chance_(kept[index], values[index], generator)


def _step_in_float32(options: dict[str, Any], values: list[torch.Tensor], step: int) -> None:
    """Update float32 copies of weights and moments in place by torch's fused kernel."""
    weights, gradients, first, second = values
    # The kernel adds one to the count of steps.
    steps_before = torch.full((), step - 1.0, device=weights.device)
    beta1, beta2 = options["betas"]
    adamw_step(
        [weights], [gradients], [first], [second], [], [steps_before], fused=True, amsgrad=False, maximize=False,
        beta1=beta1, beta2=beta2, lr=options["lr"], weight_decay=options["weight_decay"], eps=options["eps"],
    )  # fmt: skip


def round_by_chance_(target: torch.Tensor, values: torch.Tensor, generator: torch.Generator) -> None:
    """Write float32 values to a bfloat16 tensor by stochastic rounding: each is rounded up or down at random, with such
    probabilities that the mean stays the same. Values that bfloat16 represents exactly stay as they are. `values` is
    overwritten."""
    noise = torch.randint(1 << _LOWER_BITS, values.shape, dtype=torch.int32, device=values.device, generator=generator)
    # The NaN of a GPU has all lower bits set: a carry would turn it into -0.0.
    noise.mul_(values.isfinite())
    values.view(torch.int32).add_(noise).bitwise_and_(-(1 << _LOWER_BITS))
    target.copy_(values)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Part of a tensor that this rank holds, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _part(parameter: torch.Tensor, shard: int) -> tuple[int, ...]:
    """Position of this rank's part within a parameter. Ranks that hold the same part have the same position."""
    if not isinstance(parameter, DTensor):
        return (shard,)
    coordinate = parameter.device_mesh.get_coordinate() or ()
    return tuple(
        place for place, placement in zip(coordinate, parameter.placements, strict=True) if not placement.is_replicate()
    )


def _pieces(tensors: tuple[torch.Tensor, ...]) -> list[tuple[torch.Tensor, ...]]:
    """Views of the tensors, cut into pieces in the same order for each tensor. The pieces are small if all tensors are
    contiguous; otherwise each tensor is one piece."""
    if not all(tensor.is_contiguous() for tensor in tensors):
        return [(tensor,) for tensor in tensors]
    return [tensor.view(-1).split(_PIECE[tensor.device.type]) for tensor in tensors]  # type: ignore[no-untyped-call]


def members(
    settings: AdamWBf16, parameters: list[nn.Parameter], _matrices: list[nn.Parameter], shard: int
) -> list[torch.optim.Optimizer]:
    """One bfloat16 AdamW for all parameters; an optimizer such as Muon would treat matrices separately."""
    return [StochasticAdamW(parameters, shard, **adamw.options(settings))]
