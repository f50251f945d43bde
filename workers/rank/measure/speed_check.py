"""Speed of this rank's device alone, from one small calculation on every rank, so that a slow device can be
detected."""

from collections.abc import Callable

import torch

from shardtune.workers.rank.device import clock
from shardtune.workers.rank.rank_context import RankContext

_REPEATS = 5
_WARM_S = {"cpu": 0.0, "cuda": 0.5}
"""Minimum seconds of matrix products before the fastest one is taken as result, because the clocks of an idle GPU take
some hundred milliseconds to rise."""


def seconds(place: RankContext) -> float:
    """Seconds of the fastest of several equal matrix products on this rank's device, after the device's clocks have
    risen. Call it before the trial's memory is measured."""
    best = _products(place)
    # The products' cached memory would otherwise count in the trial's peak of reserved memory.
    place.accelerator.release_cache()
    return best


def _products(place: RankContext) -> float:
    size, products, dtype = (4096, 8, torch.bfloat16) if place.is_cuda else (256, 8, torch.float32)
    matrix = torch.ones(size, size, device=place.device, dtype=dtype)
    return fastest(lambda: _once(place, matrix, products), _WARM_S[place.device.type])


def fastest(once: Callable[[], float], least_s: float) -> float:
    """Seconds of the fastest of at least five repetitions of a calculation that together take at least `least_s`
    seconds."""
    times = [once() for _ in range(_REPEATS)]
    while sum(times) < least_s:
        times.append(once())
    return min(times)


def _once(place: RankContext, matrix: torch.Tensor, products: int) -> float:
    begin = clock(place.accelerator)
    for _ in range(products):
        torch.mm(matrix, matrix)
    return clock(place.accelerator) - begin
