"""Initial weights as a pure function of seed, parameter name and position, so that every sharding starts alike.

Position i of a parameter gets splitmix64(key + i · γ) (Steele, Lea and Flood 2014) scaled to a uniform
distribution of standard deviation 0.02. A shard computes its own range and nothing else.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor

_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
_STD = 0.02
_CHUNK = {"cpu": 1 << 16, "cuda": 1 << 22}
"""Number of elements hashed at a time, by device type. The number is small on a CPU, so that the memory peak of a tiny
model is not affected."""


def key_of(*parts: object) -> int:
    """Signed 64-bit hash of any values that can be printed; equal on every machine."""
    digest = hashlib.sha256("\0".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def hash_range(key: int, start: int, count: int, device: torch.device) -> torch.Tensor:
    """Pseudo-random int64 numbers of splitmix64 for the counters `start` to `start + count - 1` under `key`."""
    value = torch.arange(start, start + count, dtype=torch.int64, device=device)
    return mix_(value.mul_(_GAMMA).add_(key))


def mix_(value: torch.Tensor) -> torch.Tensor:
    """Apply the last, mixing part of splitmix64 to an int64 tensor in place. Products overflow and wrap around, as the
    algorithm demands."""
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        value.bitwise_xor_(_shift_right(value, shift)).mul_(factor)
    return value.bitwise_xor_(_shift_right(value, 31))


def _shift_right(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift an int64 tensor right and fill with zeros; torch's `>>` would copy the sign."""
    return (value >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def uniform_bits(value: torch.Tensor, bits: int = 24) -> torch.Tensor:
    """Top `bits` bits of each hash, as non-negative int64. A float32 can hold 24 bits exactly."""
    return _shift_right(value, 64 - bits)


@torch.no_grad()
def fill_(out: torch.Tensor, name: str, shape: torch.Size, start: int, seed: int, round_to: torch.dtype) -> None:
    """Fill a flat shard with those initial values of the parameter `name` that have the positions `start` to `start +
    out.numel() - 1`. The parameter's full shape is `shape`.

    Matrices get noise, biases 0, other vectors (norm weights) 1. Values are rounded to `round_to`, so that a backend
    that keeps only the compute dtype at first starts from the same master weights as the others.
    """
    if isinstance(out, FakeTensor):
        # A rehearsal's tensors have sizes and no values.
        return
    if len(shape) < 2:
        out.fill_(0.0 if name.endswith("bias") else 1.0)
        return
    key = key_of("weights", seed, name)
    chunk = _CHUNK[out.device.type]
    for offset in range(0, out.numel(), chunk):
        part = out[offset : offset + chunk]
        part.copy_(_noise(hash_range(key, start + offset, part.numel(), out.device)).to(round_to))


def filling(name: str, shape: torch.Size, seed: int) -> Callable[[torch.Tensor], None]:
    """Return a function that fills a whole parameter of any dtype with its initial values, rounded to that dtype."""
    return lambda value: fill_(value.view(-1), name, shape, 0, seed, value.dtype)


@torch.no_grad()
def fill_part_(
    part: torch.Tensor, name: str, shape: torch.Size, offset: Sequence[int], seed: int, round_to: torch.dtype
) -> None:
    """Fill a tensor with the part of a parameter's initial values that begins at `offset`.

    A part has whole rows of the parameter, a range of rows and columns of a matrix, or whole rows of stacked matrices.
    """
    if part.shape[1:] == shape[1:]:
        fill_(part.view(-1), name, shape, offset[0] * math.prod(shape[1:]), seed, round_to)
        return
    # Expert weights split by experts and rows: each matrix of the stack is a contiguous range of its own.
    if len(shape) == 3 and part.shape[2] == shape[2]:
        for number, rows in enumerate(part, start=offset[0]):
            fill_(rows.view(-1), name, shape, (number * shape[1] + offset[1]) * shape[2], seed, round_to)
        return
    assert len(shape) == 2, shape
    if isinstance(part, FakeTensor):
        return
    key = key_of("weights", seed, name)
    columns = torch.arange(offset[1], offset[1] + part.shape[1], dtype=torch.int64, device=part.device)
    for first, rows in _in_chunks(part):
        starts = torch.arange(offset[0] + first, offset[0] + first + len(rows), dtype=torch.int64, device=part.device)
        positions = starts.mul_(shape[1]).unsqueeze(1) + columns
        rows.copy_(_noise(mix_(positions.mul_(_GAMMA).add_(key))).to(round_to))


def _in_chunks(part: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Groups of rows of a parameter's part, each small enough to hash at once and with the index of its first row."""
    at_once = max(1, _CHUNK[part.device.type] // part.shape[1])
    for first in range(0, part.shape[0], at_once):
        yield first, part[first : first + at_once]


def _noise(hashes: torch.Tensor) -> torch.Tensor:
    """Uniformly distributed float32 values with the standard deviation of initial weights, made from hashes. They reuse
    the memory of the hashes."""
    # In place where possible: a second int64 tensor would double the memory of initialisation.
    # A uniform distribution on [-a, a] has the standard deviation a / √3.
    return uniform_bits(hashes).sub_(1 << 23).to(torch.float32).mul_(_STD * math.sqrt(3) / (1 << 23))
