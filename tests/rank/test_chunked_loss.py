"""A loss in chunks trains what the full loss trains, on every backend, and faults in it are caught.

More combinations, precisions, four ranks, and every model type whose head can do it, with SHARDTUNE_TEST_LONG=1.
"""

import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.workers.rank.model import chunk_math, chunked_loss, loss_plan
from shardtune.workers.rank.model.loss_plan import LossPlan
from tests.rank.helpers import small_models
from tests.rank.helpers.fork_server_process import HostProcess
from tests.rank.helpers.loss_ranks import (
    COMPILED_FAULTS,
    FAULTS,
    SHIFTED_WORDS,
    TILED_LOSS,
    assert_same,
    compared,
)
from tests.support.long_run import IS_LONG as LONG
from tests.support.long_run import telling
from tests.support.ranks.tiny_tasks import BACKENDS, GPT2, LLAMA, MIXTRAL, tiny_task

SHORT_LLAMA = LLAMA | {"num_hidden_layers": 2}
TIED = SHORT_LLAMA | {"tie_word_embeddings": True}
WIDEST = TIED | {"vocab_size": 131_072, "hidden_size": 32, "num_hidden_layers": 1}
GEMMA2 = TIED | {"model_type": "gemma2", "head_dim": 16, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
"""Model that caps its logits, as does the head that computes the loss."""
COHERE = SHORT_LLAMA | {"model_type": "cohere", "logit_scale": 0.25, "pad_token_id": 0, "eos_token_id": 1}
SHARED: dict[str, Any] = {
    "micro_batch": 2,
    "parity_steps": 3,
    "max_grad_norm": 0.3,
    "loss": "chunked",
    "loss_chunk": 24,
}
"""Two micro batches of 64 tokens a rank and step, in three chunks of which the last is shorter; the norm is clipped."""
COMPILED = SHARED | {"loss_compile": True}
"""As `SHARED`, in compiled chunks. In short runs the compiler divides graphs as a trial's, and makes no kernels."""
BOUND = {"loss": 1e-6, "norm": 1e-5, "weight": 1e-5}
BF16 = {"loss": 5e-4, "norm": 3e-2}
SPLIT: dict[str, Any] = {"kind": "fsdp2", "dp_shard": 1, "tensor_parallel": 2}
CUT: dict[str, Any] = {"kind": "fsdp2", "dp_shard": 1, "pipeline_parallel": 2}
ZERO_BUBBLE = {"pipeline_virtual_stages": 2, "reshard_after_forward": False, "grad_sync": "last"}
QUICK: dict[str, TrialTask] = {
    **{name: tiny_task(strategy, model=SHORT_LLAMA, **SHARED) for name, strategy in BACKENDS.items()},
    "ddp, tied, full checkpointing": tiny_task(BACKENDS["ddp"], model=TIED, activation_checkpointing="full", **SHARED),
    "fsdp2, capped logits": tiny_task(BACKENDS["fsdp2"], model=GEMMA2, **SHARED),
    "zero-3, scaled logits": tiny_task(BACKENDS["zero-3"], model=COHERE, activation_checkpointing="full", **SHARED),
    "fsdp1, gpt2": tiny_task(BACKENDS["fsdp1"], model=GPT2, **SHARED),
    "tensor parallel": tiny_task(SPLIT, model=SHORT_LLAMA, **SHARED),
    # Each micro batch costs a quarter of a second of dispatching distributed tensors.
    "tensor parallel, tied": tiny_task(
        SPLIT, model=TIED, activation_checkpointing="full", **(SHARED | {"micro_batch": 4})
    ),
    "context parallel": tiny_task(BACKENDS["fsdp2"], model=SHORT_LLAMA, context_parallel=2, **SHARED),
    "pipeline": tiny_task(CUT, model=SHORT_LLAMA, **SHARED),
    "pipeline, zero bubble": tiny_task(
        CUT | ZERO_BUBBLE | {"pipeline_schedule": "interleaved_zero_bubble"}, model=LLAMA, **SHARED
    ),
    **{f"{name}, compiled": tiny_task(strategy, model=SHORT_LLAMA, **COMPILED) for name, strategy in BACKENDS.items()},
    "ddp, gpt2, compiled": tiny_task(BACKENDS["ddp"], model=GPT2, **COMPILED),
    "fsdp2, capped logits, compiled": tiny_task(BACKENDS["fsdp2"], model=GEMMA2, **COMPILED),
    "zero-3, scaled logits, compiled": tiny_task(BACKENDS["zero-3"], model=COHERE, **COMPILED),
    "tensor parallel, tied, compiled": tiny_task(SPLIT, model=TIED, **(COMPILED | {"micro_batch": 4})),
    "tensor parallel, compiled": tiny_task(SPLIT, model=SHORT_LLAMA, **COMPILED),
    "context parallel, compiled": tiny_task(BACKENDS["fsdp2"], model=SHORT_LLAMA, context_parallel=2, **COMPILED),
    "pipeline, compiled": tiny_task(CUT, model=SHORT_LLAMA, **COMPILED),
    "pipeline, zero bubble, compiled": tiny_task(
        CUT | ZERO_BUBBLE | {"pipeline_schedule": "interleaved_zero_bubble"}, model=LLAMA, **COMPILED
    ),
}

OFTEN = (
    *("ddp", "fsdp2", "zero-2", "fsdp2, capped logits", "zero-3, scaled logits", "fsdp1, gpt2"),
    *("tensor parallel, tied", "context parallel", "pipeline, zero bubble"),
    *("fsdp2, capped logits, compiled", "zero-3, compiled", "tensor parallel, tied, compiled"),
)
"""One case of each backend, of each kind of head and of each way to split, and some of compiled chunks; the others in the
long run."""


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    tasks: dict[str, tuple[TrialTask, str | None]] = {
        name: (task, None) for name, task in QUICK.items() if LONG or name in OFTEN
    }
    tasks |= {fault: (QUICK["ddp"], fault) for fault in FAULTS}
    tasks[TILED_LOSS] = (QUICK["zero-2"], TILED_LOSS)
    tasks |= {fault: (QUICK["ddp, compiled"], fault) for fault in COMPILED_FAULTS}
    tasks[SHIFTED_WORDS] = (QUICK["tensor parallel, tied, compiled"], SHIFTED_WORDS)
    return compared(tasks, tmp_path_factory.mktemp("loss"))


@pytest.mark.ranks
@pytest.mark.parametrize("name", telling(QUICK, OFTEN))
def test_a_loss_in_chunks_trains_what_the_full_loss_trains(quick: dict[str, dict[str, float]], name: str) -> None:
    assert_same(quick[name], BOUND)


@pytest.mark.ranks
@pytest.mark.parametrize("fault", [*FAULTS, TILED_LOSS, *COMPILED_FAULTS, SHIFTED_WORDS])
def test_a_planted_fault_leaves_the_bounds(quick: dict[str, dict[str, float]], fault: str) -> None:
    assert quick[fault]["norm"] > 1e-4 or quick[fault]["first_loss"] > 1e-4, quick[fault]


def head_of(width: int, vocab: int, chunk: int, dtype: torch.dtype = torch.float32) -> chunked_loss.ChunkedHead:
    torch.manual_seed(0)
    head: Any = nn.Linear(width, vocab, dtype=dtype)
    head.__class__ = chunked_loss.ChunkedHead
    head.loss = chunked_loss.ChunkedLoss(LossPlan(), chunk)
    return head  # type: ignore[no-any-return]


def summed(head: chunked_loss.ChunkedHead, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    head.loss.labels = labels
    try:
        total: torch.Tensor = head(hidden)
        return total
    finally:
        head.loss.labels = None


@pytest.mark.parametrize("chunk", [1, 7, 16, 1000])
def test_ignored_labels_count_in_no_chunk(chunk: int) -> None:
    """Some chunks have no label at all, others all."""
    head, hidden = head_of(8, 32, chunk), torch.randn(2, 20, 8, requires_grad=True)
    labels = torch.randint(0, 32, (2, 20))
    labels[0, :13], labels[1, 5:9] = chunked_loss.IGNORED, chunked_loss.IGNORED
    expected = cross_entropy(head(hidden).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    inputs = (hidden, head.weight, head.bias)
    actual = summed(head, hidden, labels)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=0)
    # A factor behind the loss (the global number of labels, accumulation) reaches the head's gradient, too.
    gradients = torch.autograd.grad(actual * 0.01, inputs)
    for gradient, wanted in zip(gradients, torch.autograd.grad(expected * 0.01, inputs), strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-7)


def test_the_heads_gradient_is_rounded_once_however_many_chunks_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summed in bfloat16, the gradient of 512 chunks is several times farther from the exact one."""

    def error() -> float:
        head, hidden = head_of(16, 32, 4, torch.bfloat16), torch.randn(1, 2048, 16).bfloat16() + 1
        labels = torch.randint(0, 32, (1, 2048))
        summed(head, hidden, labels).backward()  # type: ignore[no-untyped-call]
        exact = head_of(16, 32, 4).double()
        exact.load_state_dict({name: value.double() for name, value in head.state_dict().items()})
        logits = nn.functional.linear(hidden.double(), exact.weight, exact.bias)
        cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").backward()
        assert head.weight.grad is not None and exact.weight.grad is not None
        return float((head.weight.grad.double() - exact.weight.grad).norm() / exact.weight.grad.norm())

    rounded_once = error()
    monkeypatch.setattr(
        chunk_math, "added", lambda total, part: part if total is None else (total + part).to(torch.bfloat16)
    )
    assert error() > 3 * rounded_once


def test_no_tensor_of_all_logits_exists() -> None:
    """The largest tensor that forward or backward makes is the head's gradient."""
    head, hidden = head_of(16, 512, 32), torch.randn(4, 128, 16, requires_grad=True)
    sizes: list[int] = []

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            sizes.extend(leaf.numel() for leaf in torch.utils._pytree.tree_leaves(result) if torch.is_tensor(leaf))
            return result

    with Recorder():
        summed(head, hidden, torch.randint(0, 512, (4, 128))).backward()  # type: ignore[no-untyped-call]
    assert max(sizes) <= 32 * 512


@pytest.mark.parametrize(
    ("model", "plan", "why"),
    [
        (LLAMA, LossPlan(), None),
        (GPT2, LossPlan(), None),
        (MIXTRAL, LossPlan(), None),
        (GEMMA2, LossPlan(cap=30.0, attributes=("final_logit_softcapping",)), None),
        (COHERE, LossPlan(scale=0.25, attributes=("logit_scale",)), None),
        (MIXTRAL | {"output_router_logits": True}, None, "more than the cross entropy"),
    ],
    ids=["llama", "gpt2", "mixtral", "gemma2", "cohere", "router loss"],
)
def test_a_model_says_what_it_does_with_its_logits(
    model: dict[str, Any], plan: LossPlan | None, why: str | None
) -> None:
    if plan is not None:
        assert loss_plan.of(ModelSpec(name="m", config=model), WORKLOAD) == plan
        return
    with pytest.raises(ValueError, match=why):
        loss_plan.of(ModelSpec(name="m", config=model), WORKLOAD)


WORKLOAD = Workload(sequence_length=32, global_batch=8)


@pytest.mark.ranks
def test_a_rank_rejects_a_model_whose_loss_is_more(host: HostProcess) -> None:
    model = MIXTRAL | {"output_router_logits": True}
    report = host.run(tiny_task(BACKENDS["ddp"], model=model, **SHARED))[0]
    assert report.failure is not None and report.failure.kind == "illegal", report
    assert "loss ('chunked') is not for this model: its loss is more" in report.failure.message
    assert "use 'full'" in report.failure.message


@pytest.mark.ranks
def test_at_a_vocabulary_of_128_k_chunks_fit_sequences_half_as_long_again(host: HostProcess) -> None:
    """The peak of 64 tokens with all logits is the limit, which 80 tokens with all logits exceed."""

    def trained(length: int, limit_gib: float | None, **loss: Any) -> RankReport:
        shape = {"model": WIDEST, "sequence_length": length, "global_batch": 2, "parity_steps": 2}
        return host.run(tiny_task(BACKENDS["ddp"], memory_limit_gib=limit_gib, **shape, **loss))[0]

    memory = trained(64, None).memory
    assert memory is not None and memory.peak_allocated_gib is not None
    limit = 1.01 * memory.peak_allocated_gib
    assert trained(64, limit).status == "complete"
    longer = trained(80, limit)
    assert longer.failure is not None and longer.failure.kind is FailureKind.OVER_LIMIT, longer
    in_chunks = trained(96, limit, loss="chunked", loss_chunk=16)
    assert in_chunks.status == "complete", in_chunks.failure


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
@pytest.mark.parametrize("chunks", [SHARED, COMPILED], ids=["eager", "compiled"])
def test_every_backend_checkpointing_and_accumulation_trains_the_same(tmp_path: Path, chunks: dict[str, Any]) -> None:
    cells = itertools.product(BACKENDS, ("none", "full"), (1, 4))
    tasks = {
        f"{name}, {mode}, {size}": tiny_task(
            BACKENDS[name], model=TIED, activation_checkpointing=mode, **(chunks | {"micro_batch": size})
        )
        for name, mode, size in cells
    }
    for name, difference in compared({name: (task, None) for name, task in tasks.items()}, tmp_path).items():
        assert difference and all(difference[key] <= BOUND[key] for key in BOUND), (name, difference)


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
@pytest.mark.parametrize("chunks", [SHARED, COMPILED], ids=["eager", "compiled"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-autocast"])
def test_bf16_training_stays_within_the_bounds_that_stand(
    tmp_path: Path, precision: str, chunks: dict[str, Any]
) -> None:
    kinds = BACKENDS if precision == "bf16-mixed" else {name: BACKENDS[name] for name in ("ddp", "zero-2", "zero-3")}
    tasks = {name: tiny_task(kinds[name], model=SHORT_LLAMA, precision=precision, **chunks) for name in kinds}
    for name, difference in compared({name: (task, None) for name, task in tasks.items()}, tmp_path).items():
        assert difference and all(difference[key] <= BF16[key] for key in BF16), (name, difference)


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
def test_it_trains_the_same_on_meshes_of_four_ranks(tmp_path: Path) -> None:
    four = SHORT_LLAMA | {"num_key_value_heads": 4}
    meshes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "tensor 2, sharded": (SPLIT | {"dp_shard": 2}, {}),
        "tensor 2, context 2": (SPLIT | {"dp_shard": 2}, {"context_parallel": 2}),
        "tensor 4, full": (SPLIT | {"tensor_parallel": 4}, {"activation_checkpointing": "full"}),
        "pipeline 2, sharded": (CUT | {"dp_shard": 2}, {"micro_batch": 1}),
        "pipeline 2, tensor 2": (CUT | {"tensor_parallel": 2}, {"micro_batch": 1}),
        "pipeline 2, gpipe": (CUT | {"dp_replicate": 2, "pipeline_schedule": "gpipe"}, {"micro_batch": 1}),
    }
    tasks: dict[str, tuple[TrialTask, str | None]] = {
        name: (tiny_task(strategy, ranks=4, model=four, **(SHARED | changes)), None)
        for name, (strategy, changes) in meshes.items()
    }
    tasks |= {
        f"{name}, compiled": (tiny_task(meshes[name][0], ranks=4, model=four, **(COMPILED | meshes[name][1])), None)
        for name in ("tensor 2, context 2", "tensor 4, full", "pipeline 2, tensor 2")
    }
    for name, difference in compared(tasks, tmp_path, ranks=4).items():
        assert difference and all(difference[key] <= BOUND[key] for key in BOUND), (name, difference)


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
def test_every_model_type_whose_head_can_trains_the_same(tmp_path: Path) -> None:
    tasks: dict[str, tuple[TrialTask, str | None]] = {}
    for config in small_models.configs():
        with contextlib.suppress(Exception):  # what does not build with these sizes, or has another loss
            loss_plan.of(ModelSpec(name="m", config=config), WORKLOAD)
            tasks[config["model_type"]] = (tiny_task(BACKENDS["ddp"], model=config, **SHARED), None)
    differences = compared(tasks, tmp_path)
    assert len(tasks) >= 40
    apart = {
        kind: item for kind, item in differences.items() if not item or any(item[key] > BOUND[key] for key in BOUND)
    }
    assert apart == {}
