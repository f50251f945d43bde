"""How fast this rank's device is by itself: the same small calculation on every rank, so that a slow one stands out."""

import torch

from shardtune.workers.rank.measure import throughput
from shardtune.workers.rank.place import Place

_REPEATS = 5


def seconds(place: Place) -> float:
    """Best of a few repetitions of fixed matrix products (a few milliseconds); before any memory is counted."""
    size, products, dtype = (4096, 8, torch.bfloat16) if place.is_cuda else (256, 8, torch.float32)
    matrix = torch.ones(size, size, device=place.device, dtype=dtype)
    best = min(_once(place, matrix, products) for _ in range(_REPEATS))
    del matrix
    if place.is_cuda:
        torch.cuda.empty_cache()
    return best


def _once(place: Place, matrix: torch.Tensor, products: int) -> float:
    begin = throughput.clock(place)
    for _ in range(products):
        torch.mm(matrix, matrix)
    return throughput.clock(place) - begin
