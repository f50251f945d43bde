"""Micro batches of samples of several lengths, each padded to its longest, and their part of the step's loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.functional import pad

from shardtune.api_schemas.training.sample_plan import SamplePlan
from shardtune.workers.rank.model import data
from shardtune.workers.rank.model.chunk_math import IGNORED
from shardtune.workers.rank.model.chunked_loss import ChunkedLoss


class RaggedBatch(Protocol):
    """Micro batch of samples of several lengths, padded or packed."""

    @property
    def inputs(self) -> dict[str, Any]:
        """Arguments of the model's forward pass, without the labels."""

    @property
    def labels(self) -> torch.Tensor:
        """Token ids, with `IGNORED` at positions that the loss does not count; the model shifts them."""

    @property
    def own_labels(self) -> int:
        """Number of tokens that the loss counts."""

    @property
    def weight(self) -> float:
        """Factor by which the mean loss of this micro batch is multiplied."""


@dataclass(frozen=True)
class PaddedBatch:
    """Micro batch whose rows end in padding, as the collators of transformers and TRL make it."""

    tokens: torch.Tensor
    """Token ids, int64 [samples, longest]; 0 in the padding."""
    attention_mask: torch.Tensor
    """1 where a token is the sample's own, 0 in the padding; int64, as tokenizers give it."""
    labels: torch.Tensor
    """Token ids with `IGNORED` in the padding; the model shifts them."""
    own_labels: int
    """Number of tokens that the loss counts."""
    weight: float
    """Factor by which the mean loss of this micro batch is multiplied, so that the mean over the step's micro batches is the
    mean over all labels of the step."""

    @property
    def inputs(self) -> dict[str, Any]:
        """Arguments of the model's forward pass, without the labels."""
        return {"input_ids": self.tokens, "attention_mask": self.attention_mask}


def make_batch(
    plan: SamplePlan, seed: int, step: int, samples: Sequence[int], vocab_size: int, device: torch.device
) -> PaddedBatch:
    """Make the micro batch of the given samples of a step's global batch."""
    lengths = plan.lengths(step)
    own = [lengths[index] for index in samples]
    width = plan.data.padded(max(own))
    tokens = torch.zeros(len(own), width, dtype=torch.int64, device=device)
    mask = torch.zeros_like(tokens)
    for row, (index, length) in enumerate(zip(samples, own, strict=True)):
        tokens[row, :length] = data.samples(seed, step, [index], length, vocab_size, device)[0]
        mask[row, :length] = 1
    counted = sum(own) - len(own)
    whole = sum(lengths) - len(lengths)
    return PaddedBatch(
        tokens,
        mask,
        tokens.masked_fill(mask == 0, IGNORED),
        counted,
        weight_of(counted, whole, len(lengths) // len(own)),
    )


def weight_of(own_labels: int, step_labels: int, micro_batches: int) -> float:
    """Factor by which a micro batch's mean loss is multiplied. Backends average the losses of `micro_batches`; without the
    factor, tokens in micro batches with few labels would count more."""
    return own_labels * micro_batches / step_labels


def loss(model: nn.Module, batch: RaggedBatch, chunked: ChunkedLoss | None = None) -> torch.Tensor:
    """Weighted next-token cross entropy of one micro batch; `chunked` computes it in chunks of tokens."""
    if chunked is not None:
        next_tokens = pad(batch.labels, (0, 1), value=IGNORED)[:, 1:]
        total = chunked.sum_over(model, next_tokens, **batch.inputs)
        return total * (batch.weight / batch.own_labels)
    mean: torch.Tensor = model(**batch.inputs, labels=batch.labels, use_cache=False).loss
    return mean * batch.weight
