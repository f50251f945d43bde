"""Speed of this rank's device alone: every rank runs one small calculation, so that a slow device stands out."""

from collections.abc import Callable

import torch

from shardtune.workers.rank.device import clock
from shardtune.workers.rank.rank_context import RankContext

_REPEATS = 5
_WARM_S = {"cpu": 0.0, "cuda": 0.5}
"""Least seconds of products before the fastest counts: the clocks of an idle GPU rise over some hundred milliseconds."""


def seconds(place: RankContext) -> float:
    """Seconds of the fastest of some fixed matrix products, once the clocks are up; call it before memory is counted."""
    best = _products(place)
    # The products' cached memory would otherwise count in the trial's peak of reserved memory.
    place.accelerator.release_cache()
    return best


def _products(place: RankContext) -> float:
    size, products, dtype = (4096, 8, torch.bfloat16) if place.is_cuda else (256, 8, torch.float32)
    matrix = torch.ones(size, size, device=place.device, dtype=dtype)
    return fastest(lambda: _once(place, matrix, products), _WARM_S[place.device.type])


def fastest(once: Callable[[], float], least_s: float) -> float:
    """Shortest of at least five repetitions that take at least `least_s` seconds together."""
    times = [once() for _ in range(_REPEATS)]
    while sum(times) < least_s:
        times.append(once())
    return min(times)


def _once(place: RankContext, matrix: torch.Tensor, products: int) -> float:
    begin = clock(place.accelerator)
    for _ in range(products):
        torch.mm(matrix, matrix)
    return clock(place.accelerator) - begin
