"""Selective checkpointing trains the same whatever results it keeps, and needs the predicted memory.

More combinations with SHARDTUNE_TEST_LONG=1.
"""

from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from shardtune.api_schemas.strategies import SelectiveKeeps, TrialConfig
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.workers.blocks import checkpointing
from shardtune.workers.blocks.prepare import prepare_blocks
from shardtune.workers.rank.model import build
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.long_run import IS_LONG as LONG
from tests.support.long_run import telling, wide
from tests.support.ranks.predicted_memory import predicted_gib
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import BACKENDS, GPT2, LLAMA, MIXTRAL, tiny_task

SHORT_LLAMA = LLAMA | {"num_hidden_layers": 2}
SELECTIVE: dict[str, Any] = {"activation_checkpointing": "selective"}
CHOICES: tuple[SelectiveKeeps, ...] = ("products", "second_products", "attention")
BOUND = {"loss": 1e-5, "grad_norm": 1e-4, "parameter_sum": 1e-6, "parameter_square_sum": 1e-6}
LORA = {"kind": "lora", "rank": 4, "alpha": 8}
MM, ADDMM, GROUPED = (getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "_grouped_mm"))
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
TOKENS = torch.randint(0, 512, (4, 32), generator=torch.Generator().manual_seed(3))


def _cases() -> dict[str, dict[str, Any]]:
    cases = {
        f"{name}, {keeps}": {"strategy": BACKENDS[name], "selective_keeps": keeps, "model": SHORT_LLAMA}
        for name in ("ddp", "fsdp1", "fsdp2", "zero-1", "zero-2")
        for keeps in ("second_products", "attention")
    }
    others: dict[str, dict[str, Any]] = {
        "gpt2": {"model": GPT2},
        "mixtral": {"model": MIXTRAL},
        "every 2nd block": {"checkpoint_every": 2, "model": LLAMA},
        "slices": {"mlp_slices": 4, "sequence_length": 35},
        "shared samples": {"context_parallel": 2},
        "split blocks": {"strategy": {"kind": "fsdp2", "dp_shard": 1, "tensor_parallel": 2}},
        "stages": {"strategy": {"kind": "fsdp2", "dp_shard": 1, "pipeline_parallel": 2}},
    }
    return cases | {
        f"{name}, second_products": {"strategy": BACKENDS["fsdp2"], "selective_keeps": "second_products"} | changes
        for name, changes in others.items()
    }


CASES = _cases()
OFTEN = (
    *("ddp, attention", "fsdp1, second_products", "fsdp2, attention", "zero-1, second_products", "zero-2, attention"),
    *("gpt2, second_products", "slices, second_products"),
)
"""Each backend once, products with biases, and products that are not kept; the others in the long run."""


@pytest.mark.ranks
@pytest.mark.parametrize("name", telling(CASES, OFTEN))
def test_kept_results_change_no_training(host: HostProcess, name: str) -> None:
    task = tiny_task(**({"model": SHORT_LLAMA, "micro_batch": 2, "parity_steps": 3} | SELECTIVE | CASES[name]))
    report = host.run(task)[0]
    assert report.status == "complete", report.failure
    differs = deviation(report.trajectory, train(task))
    assert all(differs[quantity] <= bound for quantity, bound in BOUND.items()), differs


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["fsdp2", *map(wide, ("ddp", "fsdp1", "zero-2"))])
def test_adapters_train_the_same_to_the_bit(run: Callable[..., RankReport], name: str) -> None:
    changes: dict[str, Any] = {"model": SHORT_LLAMA, "micro_batch": 2, "parity_steps": 3, "adapter": LORA}
    whole = run(BACKENDS[name], **changes)
    kept = run(BACKENDS[name], **changes, **SELECTIVE, selective_keeps="second_products")
    quantities = [
        [(step.loss, step.grad_norm, step.parameter_sum) for step in report.trajectory] for report in (whole, kept)
    ]
    assert quantities[0] == quantities[1] and len(quantities[0]) == 3


WIDE_BLOCKS = LLAMA | {"num_hidden_layers": 4, "intermediate_size": 512, "vocab_size": 64}
"""Model whose memory peaks in its blocks, not in the loss."""


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["ddp", *map(wide, ("fsdp1", "fsdp2", "zero-1", "zero-2"))])
def test_a_rank_needs_the_predicted_memory(run: Callable[..., RankReport], name: str) -> None:
    changes = {"model": WIDE_BLOCKS, "micro_batch": 4, "sequence_length": 256, "parity_steps": 2} | SELECTIVE
    peaks = []
    for keeps in CHOICES:
        memory = run(BACKENDS[name], **changes, selective_keeps=keeps).memory
        assert memory is not None and memory.peak_allocated_gib is not None
        peaks.append(memory.peak_allocated_gib)
        predicted = predicted_gib(tiny_task(BACKENDS[name], **changes, selective_keeps=keeps))
        assert predicted == pytest.approx(memory.peak_allocated_gib, rel=0.1), keeps
    assert peaks[0] > 1.1 * peaks[1] > 1.1 * 1.1 * peaks[2], peaks


class _Counted(TorchDispatchMode):  # type: ignore[misc]
    """Mode that counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func] += 1
        return func(*args, **(kwargs or {}))


def _network(
    keeps: SelectiveKeeps | None, model: dict[str, Any] = SHORT_LLAMA, backend: str = "", **changes: Any
) -> Any:
    """Tiny model with prepared blocks, which are compiled by `backend` if one is given."""
    torch.manual_seed(0)
    task = tiny_task(BACKENDS["ddp"], model=model)
    network = build.build(task.model, task.workload)
    build.materialize(network, torch.device("cpu"), torch.float32, 1, torch.float32)
    fields = {"strategy": BACKENDS["ddp"], "compile": bool(backend), **changes}
    fields |= {} if keeps is None else SELECTIVE | {"selective_keeps": keeps}
    prepare_blocks(network, TrialConfig.model_validate(fields), backend or "inductor")
    return network


def _gradients(network: nn.Module) -> list[torch.Tensor]:
    network(input_ids=TOKENS, labels=TOKENS).loss.backward()
    return [parameter.grad for parameter in network.parameters() if parameter.grad is not None]


def _repeated(keeps: SelectiveKeeps, model: dict[str, Any], **changes: Any) -> Counter[Any]:
    """Operators that backward repeats beside its own, by the difference to a model without checkpointing."""
    counts = []
    for choice in (keeps, None):
        network = _network(choice, model, **changes)
        loss = network(input_ids=TOKENS, labels=TOKENS).loss
        with _Counted() as counted:
            loss.backward()
        counts.append(counted.counts)
    return counts[0] - counts[1]


@pytest.mark.parametrize(
    ("keeps", "model", "operator", "number"),
    [
        # Of q, k, v, o, gate, up and down; torch ends a repetition before the last product, which nothing needs.
        ("products", SHORT_LLAMA, MM, 0),
        ("second_products", SHORT_LLAMA, MM, 3),
        ("attention", SHORT_LLAMA, MM, 6),
        ("second_products", SHORT_LLAMA, ATTENTION, 0),
        ("attention", SHORT_LLAMA, ATTENTION, 0),
        # Of one product for q, k and v, then o, up and down.
        ("products", GPT2, ADDMM, 0),
        ("second_products", GPT2, ADDMM, 1),
        ("attention", GPT2, ADDMM, 3),
        # The first product of experts is a block's sixth, after those of attention and the router.
        ("products", MIXTRAL, GROUPED, 0),
        ("second_products", MIXTRAL, GROUPED, 1),
    ],
)
def test_backward_repeats_the_products_that_are_not_kept(
    keeps: SelectiveKeeps, model: dict[str, Any], operator: Any, number: int
) -> None:
    assert _repeated(keeps, model)[operator] == number * model.get("num_hidden_layers", model.get("n_layer"))


def test_products_in_slices_are_neither_kept_nor_counted() -> None:
    """Of q, k, v and o, the second and the fourth are repeated. What each slice repeats, it also repeats by itself."""
    assert _repeated("second_products", SHORT_LLAMA, mlp_slices=4)[MM] == 2 * 2


@pytest.mark.parametrize("model", [SHORT_LLAMA, GPT2], ids=["llama", "gpt2"])
@pytest.mark.parametrize("keeps", CHOICES)
def test_gradients_are_the_same_to_the_bit(keeps: SelectiveKeeps, model: dict[str, Any]) -> None:
    for whole, checkpointed in zip(_gradients(_network(None, model)), _gradients(_network(keeps, model)), strict=True):
        assert torch.equal(whole, checkpointed)


GPT_OSS = {"model_type": "gpt_oss"} | {key: value for key, value in SHORT_LLAMA.items() if key != "model_type"}
GPT_OSS |= {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 16}


@pytest.mark.parametrize("keeps", ["products", "second_products"])
def test_products_of_experts_with_biases_are_repeated(keeps: SelectiveKeeps) -> None:
    """transformers adds the biases to the results in place: kept ones would have them twice."""
    assert _repeated(keeps, GPT_OSS)[GROUPED] >= 1
    for whole, repeated in zip(_gradients(_network(None, GPT_OSS)), _gradients(_network(keeps, GPT_OSS)), strict=True):
        assert torch.equal(whole, repeated)


class _Swapped:
    """Context of a repetition to which the results of the second and the third product are handed the other way round."""

    def __init__(self, repetition: Any) -> None:
        self._repetition = repetition

    def __enter__(self) -> Any:
        kept = self._repetition.storage[MM]
        kept[1], kept[2] = kept[2], kept[1]
        return self._repetition.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return self._repetition.__exit__(kind, error, trace)


def test_a_planted_fault_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """k and v have the same shape, so nothing but the gradients tells that a block got one for the other."""
    original = checkpointing._contexts

    def swapped(keeps: SelectiveKeeps, adds_biases: bool) -> Any:
        forward, repetition = original(keeps, adds_biases)
        return forward, _Swapped(repetition)

    monkeypatch.setattr(checkpointing, "_contexts", swapped)
    faulty, plain = _gradients(_network("products")), _gradients(_network(None))
    assert max(float((one - other).abs().max()) for one, other in zip(faulty, plain, strict=True)) > 1e-4


def _kept_bytes(network: nn.Module) -> int:
    """Bytes that the network keeps for backward beside its parameters."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        network(input_ids=TOKENS, labels=TOKENS).loss.backward()
    return sum(kept.values())


def test_compiled_blocks_keep_less_with_each_choice_and_train_the_same() -> None:
    """Blocks are divided by torch's partitioner, and run without inductor's kernels unless in the long run."""
    backend = "inductor" if LONG else "aot_eager_decomp_partition"
    kept = []
    for keeps in CHOICES:
        torch._dynamo.reset()
        kept.append(_kept_bytes(_network(keeps, backend=backend)))
        gradients = _gradients(_network(keeps, backend=backend))
        for whole, compiled in zip(_gradients(_network(None)), gradients, strict=True):
            assert torch.allclose(whole, compiled, rtol=1e-4, atol=1e-6)
    assert kept[0] > kept[1] > kept[2], kept


@pytest.mark.ranks
def test_a_rank_rejects_a_model_without_fused_attention(host: HostProcess) -> None:
    """A service that no worker has told does not know them: a mixture of GPT-OSS has attention sinks, which torch's kernels lack."""
    report = host.run(tiny_task(BACKENDS["ddp"], model=GPT_OSS, **SELECTIVE, selective_keeps="attention"))[0]
    assert report.failure is not None and report.failure.kind == "illegal", report
    assert "transformers has no fused attention for its architecture; use 'products'" in report.failure.message
