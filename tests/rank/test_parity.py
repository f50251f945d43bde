"""Strategies change speed and memory, never the training: each against one process over the whole global batch.

More steps of a deeper model with SHARDTUNE_TEST_LONG=1.
"""

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

from shardtune.api_schemas.trials.measurements import RankReport
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import GPT2, LLAMA, MIXTRAL, tiny_task

pytestmark = pytest.mark.ranks

LONG = os.environ.get("SHARDTUNE_TEST_LONG") == "1"
QUICK = {} if LONG else {"model": LLAMA | {"num_hidden_layers": 2}, "parity_steps": 4}
"""Two blocks are a first and a last one; Adam's moments are used from the second step."""

FP32 = {"loss": 1e-5, "grad_norm": 1e-4, "parameter_sum": 1e-6, "parameter_square_sum": 1e-6}
# Measured over 16 steps: loss 1.2e-4, norm 7e-3, sums 1e-4 and 2e-5. The reference rounds its gradients to bfloat16 once
# per weight and batch, the ranks once per micro batch; Adam's first steps turn a rounded sign into a whole step.
BF16 = {"loss": 5e-4, "grad_norm": 3e-2, "parameter_sum": 5e-4, "parameter_square_sum": 1e-4}

HOST: dict[str, Any] = {"pin_memory": False}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    "zero-1": {"kind": "zero", "stage": 1},
    "zero-2": {"kind": "zero", "stage": 2},
    "zero-3": {"kind": "zero", "stage": 3},
    "zero-1 offload": {"kind": "zero", "stage": 1, "offload_optimizer": HOST},
    "zero-2 offload": {"kind": "zero", "stage": 2, "offload_optimizer": HOST},
    "zero-3 offload": {"kind": "zero", "stage": 3, "offload_optimizer": HOST, "offload_param": HOST},
    "fsdp1": {"kind": "fsdp1", "dp_shard": 2},
    "fsdp2": {"kind": "fsdp2", "dp_shard": 2},
    "fsdp2 offload": {"kind": "fsdp2", "dp_shard": 2, "cpu_offload": True},
}
"""DeepSpeed's buckets are cut to the tiny model: at their default they are 2 GiB of memory each."""
for _strategy in STRATEGIES.values():
    if _strategy["kind"] == "zero":
        _strategy |= {"reduce_bucket_size": 50_000, "allgather_bucket_size": 50_000}


def assert_same_training(host: HostProcess, bound: dict[str, float], strategy: dict[str, Any], **changes: Any) -> None:
    """Run it, and compare loss, gradient norm and parameters of every step with the plain run."""
    task = tiny_task(strategy, **changes)
    report = host.run(task)[0]
    assert report.status == "complete", report.failure
    largest_deviation = deviation(report.trajectory, train(task))
    assert all(largest_deviation[name] <= bound[name] for name in bound), largest_deviation


@pytest.mark.parametrize("micro_batch", [4, 1], ids=["accumulation 1", "accumulation 4"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_fp32_training_is_the_same(host: HostProcess, name: str, micro_batch: int) -> None:
    assert_same_training(host, FP32, STRATEGIES[name], micro_batch=micro_batch, **QUICK)


@pytest.mark.parametrize("name", STRATEGIES)
def test_bf16_training_stays_within_the_stated_bound(host: HostProcess, name: str) -> None:
    """Placement of casts differs between backends in bfloat16 alone; few steps, since most processors emulate it."""
    assert_same_training(host, BF16, STRATEGIES[name], precision="bf16-mixed", **({"parity_steps": 6} | QUICK))


@pytest.mark.parametrize("name", ["ddp", "zero-3", *(["zero-1", "zero-2", "fsdp1", "fsdp2"] if LONG else [])])
def test_autocast_training_stays_within_the_stated_bound(host: HostProcess, name: str) -> None:
    """Weights, gradients and reduction in float32: what the Trainer and Accelerate do with bf16 under DDP."""
    strategy = STRATEGIES[name]
    assert_same_training(
        host, BF16, strategy, precision="bf16-autocast", micro_batch=2, **({"parity_steps": 6} | QUICK)
    )


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_compiled_blocks_train_the_same(host: HostProcess, name: str) -> None:
    """Compilation on CPU ranks writes C++."""
    model = LLAMA | {"num_hidden_layers": 2}
    assert_same_training(host, FP32, STRATEGIES[name], compile=True, model=model, parity_steps=3)


def test_loss_falls_by_a_fifth_over_the_compared_steps() -> None:
    first, *_, last = train(tiny_task({"kind": "ddp"}))
    assert last.loss < 0.8 * first.loss


@pytest.mark.parametrize(
    ("precision", "strategy"),
    [
        ("fp32", {"sharding_strategy": "HYBRID_SHARD"}),
        ("fp32", {"sharding_strategy": "_HYBRID_SHARD_ZERO2", "grad_sync": "last", "use_orig_params": True}),
        ("bf16-mixed", {"sharding_strategy": "HYBRID_SHARD"}),
    ],
    ids=["fp32", "last, kept", "bf16"],
)
def test_hybrid_fsdp1_on_four_ranks_trains_the_same(
    host: HostProcess, precision: str, strategy: dict[str, Any]
) -> None:
    config = {"kind": "fsdp1", "dp_replicate": 2, "dp_shard": 2, **strategy}
    bound = FP32 if precision == "fp32" else BF16
    assert_same_training(host, bound, config, precision=precision, ranks=4, **({"parity_steps": 6} | QUICK))


@pytest.mark.parametrize("grad_sync", ["every", "reduce_scatter", "last"])
def test_hsdp_on_four_ranks_trains_the_same_however_gradients_are_synchronised(
    host: HostProcess, grad_sync: str
) -> None:
    strategy = {"kind": "fsdp2", "dp_replicate": 2, "dp_shard": 2, "grad_sync": grad_sync}
    assert_same_training(host, FP32, strategy, ranks=4, **({"parity_steps": 6} | QUICK))


@pytest.mark.parametrize(
    "strategy",
    [
        {"kind": "ddp", "grad_sync": "every", "gradient_as_bucket_view": True},
        {"kind": "fsdp1", "dp_shard": 2, "sharding_strategy": "SHARD_GRAD_OP", "grad_sync": "last"},
        {"kind": "fsdp1", "dp_shard": 2, "use_orig_params": True, "backward_prefetch": None, "forward_prefetch": True},
        {"kind": "fsdp1", "dp_shard": 1, "dp_replicate": 2, "sharding_strategy": "NO_SHARD"},
        {"kind": "fsdp2", "dp_shard": 2, "grad_sync": "last"},
        {"kind": "fsdp2", "dp_shard": 2, "separate_reduce_scatter_group": True},
        {"kind": "fsdp2", "dp_shard": 1, "dp_replicate": 2, "backward_prefetch": 0},
        {
            "kind": "fsdp2",
            "dp_shard": 2,
            "reshard_after_forward": False,
            "forward_prefetch": 2,
            "backward_prefetch": 2,
            "blocks_per_unit": 2,
        },
        STRATEGIES["zero-2"] | {"overlap_comm": False, "contiguous_gradients": False, "round_robin_gradients": True},
        STRATEGIES["zero-3"] | {"zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0},
        STRATEGIES["zero-3"] | {"sub_group_size": 40_000, "offload_optimizer": {"pin_memory": False, "ratio": 0.5}},
    ],
    ids=lambda strategy: " ".join(f"{key}={value}" for key, value in strategy.items() if "bucket_size" not in key),
)
def test_no_knob_changes_the_training(host: HostProcess, strategy: dict[str, Any]) -> None:
    assert_same_training(host, FP32, strategy, parity_steps=6 if LONG else 3)


@pytest.mark.parametrize("name", ["ddp", "zero-3", "fsdp1", "fsdp2"])
def test_collecting_garbage_by_steps_changes_no_training(host: HostProcess, name: str) -> None:
    assert_same_training(host, FP32, STRATEGIES[name], gc_every=2, parity_steps=3)


@pytest.mark.parametrize(
    ("name", "mode"),
    [*itertools.product(["ddp", "zero-2", "fsdp1", "fsdp2"], ["selective", "full"]), ("zero-3", "full")],
)
def test_checkpointing_changes_memory_only(host: HostProcess, name: str, mode: str) -> None:
    assert_same_training(host, FP32, STRATEGIES[name], activation_checkpointing=mode, micro_batch=4, parity_steps=3)


@pytest.mark.parametrize(
    ("name", "mode", "every"),
    [
        *itertools.product(["ddp", "zero-1", "zero-2", "zero-3", "fsdp1", "fsdp2"], ["full"], [2]),
        *itertools.product(["zero-3", "fsdp2"], ["full"], [3, 4]),
        *itertools.product(["zero-2", "fsdp1"], ["selective"], [2]),
    ],
)
def test_checkpointing_every_kth_block_changes_memory_only(host: HostProcess, name: str, mode: str, every: int) -> None:
    changes = {"activation_checkpointing": mode, "checkpoint_every": every, "micro_batch": 4, "parity_steps": 3}
    assert_same_training(host, FP32, STRATEGIES[name], **changes)


@pytest.mark.parametrize("name", ["ddp", "zero-3", "fsdp1", "fsdp2"])
@pytest.mark.parametrize("model", [GPT2, MIXTRAL], ids=["gpt2", "mixtral"])
def test_other_architectures_train_the_same(host: HostProcess, name: str, model: dict[str, Any]) -> None:
    assert_same_training(host, FP32, STRATEGIES[name], model=model, micro_batch=4, parity_steps=3)


def test_checkpointing_takes_less_memory(run: Callable[..., RankReport]) -> None:
    def peak(mode: str, every: int = 1) -> float:
        changes = {"activation_checkpointing": mode, "checkpoint_every": every, "micro_batch": 4}
        report = run({"kind": "ddp"}, **changes, sequence_length=96, parity_steps=2)
        assert report.memory is not None
        return report.memory.peak_allocated_gib or 0.0

    none, selective, full = (peak(mode) for mode in ("none", "selective", "full"))
    assert none > selective > full
    assert none > 1.1 * full
    fourth, second = (peak("full", every) for every in (4, 2))
    assert none > fourth > second > full
