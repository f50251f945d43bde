"""Compiled chunks of the loss: what the compiler may reuse, and that it never runs them uncompiled in silence.

That they train what the full loss trains stands in `test_chunked_loss`. Kernels of the trials' compiler with
SHARDTUNE_TEST_LONG=1.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.workers.rank import classify
from shardtune.workers.rank.measure import compilations
from shardtune.workers.rank.model import chunk_math
from shardtune.workers.rank.model.chunk_math import IGNORED
from shardtune.workers.rank.model.chunked_loss import ChunkedHead, ChunkedLoss
from shardtune.workers.rank.model.loss_plan import LossPlan
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.long_run import IS_LONG as LONG
from tests.support.ranks.tiny_tasks import BACKENDS, LLAMA, tiny_task

COMPILED = TrialConfig(strategy=DdpConfig(), loss="chunked", loss_compile=True)
LENGTHS = (40, 51, 33, 7, 96, 1, 16, 65)
"""Numbers of tokens of micro batches whose last chunk of 16 has 8, 3, 1, 7, 16, 1, 16 and 1 tokens."""


@pytest.fixture(autouse=True)
def fresh_dynamo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(chunk_math, "COMPILER", "inductor" if LONG else "aot_eager_decomp_partition")
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=False):
        yield
    torch._dynamo.reset()


def head_of(plan: LossPlan) -> ChunkedHead:
    torch.manual_seed(0)
    head: Any = nn.Linear(8, 64)
    head.__class__ = ChunkedHead
    head.loss = ChunkedLoss(plan, 16, is_compiled=True)
    return head  # type: ignore[no-any-return]


def summed(head: ChunkedHead, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    head.loss.labels = labels
    try:
        total: torch.Tensor = head(hidden)
        return total
    finally:
        head.loss.labels = None


@pytest.mark.parametrize("plan", [LossPlan(), LossPlan(scale=0.25), LossPlan(cap=30.0)], ids=["plain", "scale", "cap"])
def test_chunks_of_every_length_share_their_code(plan: LossPlan) -> None:
    """Two functions, each for chunks of several tokens and once more for a chunk of one."""
    head = head_of(plan)
    compilations.keep_records()
    before = compilations.count()
    for number, tokens in enumerate((*LENGTHS, *LENGTHS)):
        hidden = torch.randn(1, tokens, 8, requires_grad=True)
        labels = torch.randint(0, 64, (1, tokens))
        labels[0, : tokens // 3] = IGNORED
        logits = plan.finished(head(hidden)).flatten(0, 1)
        expected = cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum")
        actual = summed(head, hidden, labels)
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
        inputs = (hidden, head.weight, head.bias)
        for gradient, wanted in zip(
            torch.autograd.grad(actual * 0.01, inputs), torch.autograd.grad(expected * 0.01, inputs), strict=True
        ):
            torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-6)
        if number == len(LENGTHS):
            middle = compilations.count()
    after = compilations.count()
    assert after.frames - before.frames <= 4 and after.graph_breaks == before.graph_breaks
    assert after.frames == middle.frames, "nothing is compiled for lengths that were there before"


def test_a_gradient_takes_the_place_of_the_logits() -> None:
    logits, labels = torch.randn(16, 64, dtype=torch.bfloat16), torch.randint(0, 64, (16,))
    total, scales = chunk_math.compiled_sum_of(logits, labels, LossPlan())
    assert total.dtype == scales.dtype == torch.float32 and scales.shape == (16, 2)
    gradient = chunk_math.compiled_gradient_of(logits, labels, LossPlan(), torch.tensor(1.0), scales)
    assert gradient is logits and gradient.dtype == torch.bfloat16
    torch.testing.assert_close(gradient.float().sum(1), torch.zeros(16), rtol=0, atol=0.02)


def test_a_break_of_the_graph_ends_the_trial_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def weights_of(labels: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return (labels != IGNORED).float()

    monkeypatch.setattr(chunk_math, "weights_of", weights_of)
    with pytest.raises(Exception) as caught:
        summed(head_of(LossPlan()), torch.randn(1, 16, 8), torch.zeros(1, 16, dtype=torch.int64))
    failure = classify.failure_of(caught.value, "training", 0, config=COMPILED)
    assert failure.kind is FailureKind.ILLEGAL
    assert failure.message.startswith("loss_compile (true)") and "set loss_compile to false" in failure.message


def test_the_limit_of_recompilations_ends_the_trial_with_the_remedy() -> None:
    config = COMPILED.model_copy(update={"compile": True})
    with pytest.raises(Exception) as caught, torch._dynamo.config.patch(recompile_limit=1):
        for words in (64, 65, 66):
            chunk_math.compiled_sum_of(torch.randn(16, words), torch.zeros(16, dtype=torch.int64), LossPlan())
    failure = classify.failure_of(caught.value, "training", 0, config=config)
    assert failure.kind is FailureKind.ILLEGAL
    assert failure.message.startswith("loss_compile (true) reached Dynamo's limit")


@pytest.mark.parametrize("name", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_an_environment_that_compiles_nothing_is_rejected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk_math.require_compiler()
    monkeypatch.setenv(name, "1")
    with pytest.raises(ValueError, match=rf"loss_compile \(true\) .*unset {name}"):
        chunk_math.require_compiler()


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="kernels in C++ take 20 s of a core: SHARDTUNE_TEST_LONG=1")
def test_a_trial_counts_what_its_loss_compiled(host: HostProcess) -> None:
    model = LLAMA | {"num_hidden_layers": 2}
    chunks = {"loss": "chunked", "loss_chunk": 24, "loss_compile": True}
    report = host.run(tiny_task(BACKENDS["ddp"], model=model, micro_batch=2, parity_steps=3, **chunks))[0]
    assert report.status == "complete", report.failure
    assert report.compiled is not None
    assert (report.compiled.frames, report.compiled.graph_breaks, report.compiled.while_timed) == (2, 0, 0)
