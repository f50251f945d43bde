"""Training data as a pure function of seed, step and sample index, whatever the sharding. A model can learn the data.

A sample walks a fixed cycle through a small active vocabulary (so the next token mostly follows from the last), with
a quarter of its positions replaced by draws that favour a few tokens, as text does.
"""

from collections.abc import Sequence

import torch

from shardtune.workers.rank.model import weights

_ACTIVE = 64
"""Number of different token ids in the synthetic data. They are spread evenly over the vocabulary, so that each shard
of a split embedding is used."""
_REPLACED = 1 << 22
"""Probability that a position of the synthetic text gets a random token instead of the next token of a fixed sequence.
The unit is 2^-24, so that this value means one quarter."""


def samples(
    seed: int, step: int, indices: Sequence[int], length: int, vocab_size: int, device: torch.device
) -> torch.Tensor:
    """Token ids of samples of a step's global batch, chosen by their indices; int64 of shape [len(indices), length]."""
    active = min(_ACTIVE, vocab_size)
    rows = [_ranks_of_sample(weights.key_of("data", seed, step, i), length, active, device) for i in indices]
    return torch.stack(rows) * (vocab_size // active)


def _ranks_of_sample(key: int, length: int, active: int, device: torch.device) -> torch.Tensor:
    """Tokens of one sample as numbers from 0 to active - 1, int64 [length]; lower numbers are more frequent."""
    noise = weights.hash_range(key, 1, length, device)
    choice = weights.uniform_bits(noise, 24)
    low = noise.bitwise_and_((1 << 24) - 1).to(torch.float32) / (1 << 24)
    # The cube of a uniform draw: rank r has a probability near r^(-2/3), a few tokens make most of it.
    frequent = (low.pow(3) * active).to(torch.int64).clamp_(max=active - 1)
    start = (key >> 8) % active
    # A stride coprime to the usual sizes of `active`, so that the cycle visits every token.
    walk = (torch.arange(length, device=device) * 13 + start) % active
    return torch.where(choice < _REPLACED, frequent, walk)


def micro_batch_indices(group: int, micro_batch: int, accumulation: int, micro: int) -> range:
    """Indices, in the global batch, of the samples that form micro batch number `micro` of a data-parallel group.

    All groups and micro batches together cover each sample exactly once.
    """
    start = (group * accumulation + micro) * micro_batch
    return range(start, start + micro_batch)
