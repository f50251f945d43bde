"""The loss of padded micro batches in one process: faults that a mean of means or padding would hide."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from shardtune.workers.rank.model import build, data, padded_batch
from shardtune.workers.rank.training.step import CausalStep
from tests.support.ranks.tiny_tasks import LLAMA, tiny_task

CPU = torch.device("cpu")
LENGTHS = [3, 31, 5, 29, 3, 7, 31, 4]


@pytest.fixture(scope="module")
def batches() -> tuple[nn.Module, list[padded_batch.PaddedBatch], float]:
    """Model, its micro batches of two samples, and the mean loss over all tokens of the samples, each run alone."""
    task = tiny_task({"kind": "ddp"}, model=LLAMA | {"num_hidden_layers": 2}, data={"lengths": LENGTHS})
    workload, step = task.workload, CausalStep(task.model, task.workload)
    model = step.build_model()
    build.materialize(model, CPU, torch.float32, 1, torch.float32)
    assert workload.sample_plan is not None
    lengths, total = workload.sample_plan.lengths(0), 0.0
    with torch.no_grad():
        for index, length in enumerate(lengths):
            tokens = data.samples(workload.seed, 0, [index], length, 512, CPU)
            total += float(model(input_ids=tokens, labels=tokens, use_cache=False).loss) * (length - 1)
    made = [step.make_batch(0, [first, first + 1], CPU) for first in range(0, 8, 2)]
    own = [batch for batch in made if isinstance(batch, padded_batch.PaddedBatch)]
    return model, own, total / (sum(lengths) - len(lengths))


def mean(model: nn.Module, own: list[padded_batch.PaddedBatch]) -> float:
    with torch.no_grad():
        return sum(float(padded_batch.loss(model, batch)) for batch in own) / len(own)


def test_the_mean_over_micro_batches_is_the_mean_over_tokens(
    batches: tuple[nn.Module, list[padded_batch.PaddedBatch], float],
) -> None:
    model, own, expected = batches
    assert len(own) == 4 and any(int(batch.attention_mask.min()) == 0 for batch in own)
    assert mean(model, own) == pytest.approx(expected, rel=1e-6)


def test_a_mean_of_means_is_another_loss(batches: tuple[nn.Module, list[padded_batch.PaddedBatch], float]) -> None:
    model, own, expected = batches
    assert abs(mean(model, [replace(batch, weight=1.0) for batch in own]) / expected - 1) > 1e-4


def test_padding_in_the_loss_is_another_loss(batches: tuple[nn.Module, list[padded_batch.PaddedBatch], float]) -> None:
    model, own, expected = batches
    assert abs(mean(model, [replace(batch, labels=batch.tokens) for batch in own]) / expected - 1) > 1e-3


def test_padding_changes_no_sample(batches: tuple[nn.Module, list[padded_batch.PaddedBatch], float]) -> None:
    model, own, _ = batches
    batch = next(batch for batch in own if int(batch.attention_mask.min()) == 0)
    with torch.no_grad():
        logits = model(input_ids=batch.tokens, attention_mask=batch.attention_mask, use_cache=False).logits
        for row, mask in enumerate(batch.attention_mask):
            length = int(mask.sum())
            alone = model(input_ids=batch.tokens[row : row + 1, :length], use_cache=False).logits[0]
            assert torch.allclose(logits[row, :length], alone, atol=1e-5)
