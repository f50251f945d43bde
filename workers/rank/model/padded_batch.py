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
        """Keyword arguments for the model's forward pass, without the labels."""

    @property
    def labels(self) -> torch.Tensor:
        """Label of each position: the token id itself, because the model shifts labels; `IGNORED` at positions that the
        loss does not count."""

    @property
    def own_labels(self) -> int:
        """Number of tokens that the loss counts."""

    @property
    def weight(self) -> float:
        """Factor by which the mean loss of this micro batch must be multiplied."""


@dataclass(frozen=True)
class PaddedBatch:
    """Micro batch whose rows end in padding, as the collators of transformers and TRL make it."""

    tokens: torch.Tensor
    """Token ids, int64 [samples, longest]; 0 in the padding."""
    attention_mask: torch.Tensor
    """Attention mask, int64 as tokenizers return it: 1 for the tokens of the sample, 0 for padding."""
    labels: torch.Tensor
    """Label of each position: the token id itself, because the model shifts labels; `IGNORED` in the padding."""
    own_labels: int
    """Number of tokens that the loss counts."""
    weight: float
    """Factor by which the mean loss of this micro batch is multiplied. With it, the mean over the step's micro batches
    is the mean over all labels of the step."""

    @property
    def inputs(self) -> dict[str, Any]:
        """Keyword arguments for the model's forward pass, without the labels."""
        return {"input_ids": self.tokens, "attention_mask": self.attention_mask}


def make_batch(
    plan: SamplePlan, seed: int, step: int, samples: Sequence[int], vocab_size: int, device: torch.device
) -> PaddedBatch:
    """Make the micro batch from those samples of a step's global batch whose indices are given."""
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
    """Factor by which a micro batch's mean loss is multiplied. Backends take the mean of the losses of `micro_batches`
    micro batches; without the factor, tokens in micro batches with few labels would count more than others."""
    return own_labels * micro_batches / step_labels


def loss(model: nn.Module, batch: RaggedBatch, chunked: ChunkedLoss | None = None) -> torch.Tensor:
    """Next-token cross entropy of one micro batch, times the micro batch's weight. `chunked` computes it in chunks of
    tokens; if None, the model computes it from all logits."""
    if chunked is not None:
        next_tokens = pad(batch.labels, (0, 1), value=IGNORED)[:, 1:]
        total = chunked.sum_over(model, next_tokens, **batch.inputs)
        return total * (batch.weight / batch.own_labels)
    mean: torch.Tensor = model(**batch.inputs, labels=batch.labels, use_cache=False).loss
    return mean * batch.weight
