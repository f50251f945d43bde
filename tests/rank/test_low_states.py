"""bf16-true trains the same on every backend: weights, gradients, moments and computation in bfloat16 throughout.

Each against one process over the whole global batch, in the same dtypes. Every backend with SHARDTUNE_TEST_LONG=1.
"""

from typing import Any

import pytest
import torch

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.workers.rank import classify
from shardtune.workers.rank.strategies import base
from shardtune.workers.rank.strategies.state_dtypes import StateCheck, kept_dtypes
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.long_run import wide
from tests.support.ranks.predicted_memory import predicted_gib
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import LLAMA, MIXTRAL, tiny_task

pytestmark = pytest.mark.ranks

BOUND = {"loss": 1e-4, "grad_norm": 2e-2, "parameter_sum": 5e-4, "parameter_square_sum": 2.5e-5}
"""Measured over six steps: loss 3.6e-5, norm 6.5e-3 (torch rounds it to bfloat16), sums 1.8e-4 and 7.8e-6."""
TWO_BLOCKS = LLAMA | {"num_hidden_layers": 2}
WIDE = TWO_BLOCKS | {"hidden_size": 128, "intermediate_size": 512, "vocab_size": 2048}
"""States beside which the activations are small."""
MUON: dict[str, Any] = {"kind": "muon", "lr": 1.25e-3, "adamw": {"lr": 1.25e-3}}
BUCKETS = {"reduce_bucket_size": 50_000, "allgather_bucket_size": 50_000}
"""Cut to the tiny model: at their default they are 2 GiB of memory each."""
HOST: dict[str, Any] = {"offload_optimizer": {"pin_memory": False}}
FSDP2: dict[str, Any] = {"kind": "fsdp2", "dp_shard": 2}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    **{f"zero-{stage}": {"kind": "zero", "stage": stage} | BUCKETS for stage in (1, 2, 3)},
    **{f"zero-{stage} offload": {"kind": "zero", "stage": stage} | BUCKETS | HOST for stage in (1, 2, 3)},
    "fsdp1": {"kind": "fsdp1", "dp_shard": 2},
    "fsdp2": FSDP2,
    "fsdp2 offload": FSDP2 | {"cpu_offload": True},
}
ONE_SHARD: dict[str, Any] = {"kind": "fsdp2", "dp_shard": 1}


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        pytest.param(STRATEGIES["ddp"], {}, id="ddp"),
        wide(STRATEGIES["zero-1"], {}, id="zero-1"),
        pytest.param(STRATEGIES["zero-2 offload"], {}, id="zero-2 offload"),
        pytest.param(STRATEGIES["zero-3"], {"micro_batch": 4}, id="zero-3"),
        pytest.param(STRATEGIES["fsdp1"], {}, id="fsdp1"),
        pytest.param(FSDP2, {}, id="fsdp2"),
        *(wide(STRATEGIES[name], {}, id=name) for name in ("zero-1 offload", "zero-2", "zero-3 offload")),
        wide(STRATEGIES["fsdp2 offload"], {}, id="fsdp2 offload"),
        wide(FSDP2, {"optimizer": MUON}, id="muon"),
        wide(ONE_SHARD | {"tensor_parallel": 2}, {}, id="tensor parallel"),
        wide(ONE_SHARD | {"pipeline_parallel": 2}, {}, id="pipeline"),
        wide(FSDP2, {"context_parallel": 2}, id="context parallel"),
        wide(FSDP2 | {"expert_parallel": 2}, {"model": MIXTRAL}, id="expert parallel"),
        wide(STRATEGIES["zero-3"], {"loss": "chunked", "loss_chunk": 16}, id="chunked loss"),
        wide(STRATEGIES["fsdp1"], {"activation_checkpointing": "full"}, id="checkpointing"),
    ],
)
def test_bf16_throughout_trains_the_same(host: HostProcess, strategy: dict[str, Any], changes: dict[str, Any]) -> None:
    """A trial also compares the dtype of its optimizer's states with the precision's, and fails where they differ."""
    task = tiny_task(
        strategy, **({"precision": "bf16-true", "model": TWO_BLOCKS, "parity_steps": 4, "micro_batch": 2} | changes)
    )
    report = host.run(task)[0]
    assert report.status == "complete", report.failure
    largest = deviation(report.trajectory, train(task))
    assert all(largest[name] <= BOUND[name] for name in BOUND), largest


def test_bf16_throughout_is_another_training_than_bf16_mixed() -> None:
    """Otherwise the bounds would let a backend with float32 states pass."""
    true, mixed = (
        train(tiny_task({"kind": "ddp"}, precision=precision, model=TWO_BLOCKS, parity_steps=6))
        for precision in ("bf16-true", "bf16-mixed")
    )
    assert deviation(true, mixed)["parameter_square_sum"] > 2 * BOUND["parameter_square_sum"]


@pytest.mark.parametrize(
    "name", ["ddp", "fsdp2", *(wide(name, id=name) for name in ("zero-1", "zero-2", "zero-3", "fsdp1"))]
)
def test_predicted_memory_of_low_states_is_within_a_tenth(host: HostProcess, name: str) -> None:
    """Float32 moments would take half as much again."""
    task = tiny_task(STRATEGIES[name], precision="bf16-true", model=WIDE, parity_steps=2)
    report = host.run(task)[0]
    assert report.memory is not None and report.memory.peak_allocated_gib is not None, report.failure
    assert predicted_gib(task, WIDE) == pytest.approx(report.memory.peak_allocated_gib, rel=0.1)


class OnRankZero:
    """Rank context of a setup that starts no ranks."""

    world_size = 2


def stepped(dtype: torch.dtype) -> torch.optim.AdamW:
    """AdamW after a step of weights with a dtype."""
    weight = torch.nn.Parameter(torch.ones(4, dtype=dtype))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight], fused=True)
    optimizer.step()
    return optimizer


def test_states_in_another_dtype_than_the_precisions_end_the_trial_and_are_named() -> None:
    def check(precision: str) -> StateCheck:
        return StateCheck(base.TrainingSetup.of(tiny_task({"kind": "ddp"}, precision=precision), OnRankZero()))  # type: ignore[arg-type]

    assert kept_dtypes(stepped(torch.bfloat16)) == {"exp_avg": torch.bfloat16, "exp_avg_sq": torch.bfloat16}
    check("bf16-true").after_step([stepped(torch.bfloat16)])
    check("bf16-mixed").after_step([stepped(torch.float32)])
    with pytest.raises(classify.NumericsError, match=r"AdamW keeps exp_avg in torch.float32; use precision") as caught:
        check("bf16-true").after_step([stepped(torch.bfloat16), stepped(torch.float32)])
    assert classify.failure_of(caught.value, "training", 0).kind is FailureKind.NUMERICS
