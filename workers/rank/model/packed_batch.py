"""Micro batches of packed rows: several samples in each, told apart by positions that begin anew, without a mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from shardtune.api_schemas.training.padding import FLASH
from shardtune.api_schemas.training.sample_plan import PackedPlan
from shardtune.workers.rank.model import data
from shardtune.workers.rank.model.chunk_math import IGNORED
from shardtune.workers.rank.model.padded_batch import weight_of


@dataclass(frozen=True)
class PackedBatch:
    """Micro batch of packed rows, as TRL's packing and transformers' flattening collator make it."""

    inputs: dict[str, Any]
    """Keyword arguments for the model (see `model_inputs`)."""
    labels: torch.Tensor
    """Label of each position: the token id itself, because the model shifts labels. Padding, and the first token of
    each sample, which has no predecessor, have the label `IGNORED`."""
    own_labels: int
    """Number of tokens that the loss counts."""
    weight: float
    """Factor by which the mean loss of this micro batch is multiplied (see `padded_batch.weight_of`)."""


def make_batch(
    plan: PackedPlan,
    seed: int,
    step: int,
    indices: Sequence[int],
    vocab_size: int,
    device: torch.device,
    attention: str,
) -> PackedBatch:
    """Make a micro batch from those rows of a step whose indices are given."""
    rows = plan.rows(step)
    tokens = torch.zeros(len(indices), plan.row_length, dtype=torch.int64, device=device)
    labels = torch.full_like(tokens, IGNORED)
    positions = torch.zeros_like(tokens)
    first_samples = list(accumulate(map(len, rows), initial=0))
    for place, index in enumerate(indices):
        sample, start = first_samples[index], 0
        for length in rows[index]:
            own = data.samples(seed, step, [sample], length, vocab_size, device)[0]
            tokens[place, start : start + length] = own
            labels[place, start + 1 : start + length] = own[1:]
            positions[place, start : start + length] = torch.arange(length, device=device)
            sample, start = sample + 1, start + length
        # Padding is a sample of its own: nothing attends to it but itself.
        positions[place, start:] = torch.arange(plan.row_length - start, device=device)
    counted = sum(sum(rows[index]) - len(rows[index]) for index in indices)
    whole = sum(map(sum, rows)) - first_samples[-1]
    if attention == FLASH:
        labels = labels.view(1, -1)
    weight = weight_of(counted, whole, len(rows) // len(indices))
    return PackedBatch(model_inputs(tokens, positions, attention), labels, counted, weight)


def model_inputs(tokens: torch.Tensor, positions: torch.Tensor, attention: str) -> dict[str, Any]:
    """Arguments with which a model keeps the samples of each row apart. `positions` count from 0 in each sample.

    No attention mask may be passed: with one, even a mask of ones, transformers does not look for the bounds of
    samples, and each sample would see its neighbours.
    """
    if attention != FLASH:
        return {"input_ids": tokens, "position_ids": positions}
    # transformers infers bounds from positions only where a batch has one row (5.23), and would in each layer.
    starts = torch.nonzero(positions.flatten() == 0).flatten().to(torch.int32)
    bounds = torch.cat([starts, starts.new_tensor([positions.numel()])])
    longest = int(bounds.diff().max())
    return {
        "input_ids": tokens.view(1, -1),
        "position_ids": positions.view(1, -1),
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": longest,
        "max_length_k": longest,
    }
