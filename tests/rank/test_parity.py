"""Strategies change speed and memory, never the training: each against one process over the whole global batch.

Each mechanism once; every backend with each of them, and more steps of a deeper model, with SHARDTUNE_TEST_LONG=1.
"""

from collections.abc import Callable
from typing import Any

import pytest

from shardtune.api_schemas.trials.rank_reports import RankReport
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.long_run import IS_LONG as LONG
from tests.support.long_run import telling, wide
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import GPT2, LLAMA, MIXTRAL, tiny_task
from tests.support.ranks.torch_features import OWN_REDUCE_SCATTER

pytestmark = pytest.mark.ranks

QUICK = {} if LONG else {"model": LLAMA | {"num_hidden_layers": 2}, "parity_steps": 4}
"""Two blocks are a first and a last one; Adam's moments are used from the second step."""
MICRO = {} if LONG else {"micro_batch": 2}
"""Two micro batches are a first and a last one."""

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


FP32_NAMES = ("ddp", "zero-1", "zero-2 offload", "fsdp2")
"""Backends and stages that no other case trains in fp32: FSDP1 and ZeRO-3 also do with checkpointing and with their knobs."""


@pytest.mark.parametrize("micro_batch", [wide(4, id="accumulation 1"), pytest.param(1, id="accumulation 4")])
@pytest.mark.parametrize("name", telling(STRATEGIES, FP32_NAMES))
def test_fp32_training_is_the_same(host: HostProcess, name: str, micro_batch: int) -> None:
    assert_same_training(host, FP32, STRATEGIES[name], micro_batch=micro_batch, **QUICK)


@pytest.mark.parametrize("name", telling(STRATEGIES, ["ddp", "zero-2", "zero-3 offload", "fsdp1", "fsdp2 offload"]))
def test_bf16_training_stays_within_the_stated_bound(host: HostProcess, name: str) -> None:
    """Placement of casts differs between backends in bfloat16 alone; few steps, since most processors emulate it."""
    assert_same_training(host, BF16, STRATEGIES[name], precision="bf16-mixed", **({"parity_steps": 6} | MICRO | QUICK))


@pytest.mark.parametrize("name", ["ddp", "zero-3", *(["zero-1", "zero-2", "fsdp1", "fsdp2"] if LONG else [])])
def test_autocast_training_stays_within_the_stated_bound(host: HostProcess, name: str) -> None:
    """Weights, gradients and reduction in float32: what the Trainer and Accelerate do with bf16 under DDP."""
    strategy = STRATEGIES[name]
    assert_same_training(
        host, BF16, strategy, precision="bf16-autocast", micro_batch=2, **({"parity_steps": 6} | QUICK)
    )


@pytest.mark.parametrize("name", telling(["ddp", "fsdp2"], []))
def test_compiled_blocks_train_the_same(host: HostProcess, name: str) -> None:
    """Compilation on CPU ranks writes C++, 40 s of a core; tests/rank/test_compiled_backends.py always compiles once."""
    model = LLAMA | {"num_hidden_layers": 2}
    assert_same_training(host, FP32, STRATEGIES[name], compile=True, model=model, parity_steps=3)


def test_loss_falls_by_a_fifth_over_the_compared_steps() -> None:
    first, *_, last = train(tiny_task({"kind": "ddp"}))
    assert last.loss < 0.8 * first.loss


@pytest.mark.parametrize(
    ("precision", "strategy"),
    [
        wide("fp32", {"sharding_strategy": "HYBRID_SHARD"}, id="fp32"),
        pytest.param(
            "fp32",
            {"sharding_strategy": "_HYBRID_SHARD_ZERO2", "grad_sync": "last", "use_orig_params": True},
            id="last, kept",
        ),
        # tests/hosts/test_launchers.py trains HYBRID_SHARD over two hosts.
        wide("bf16-mixed", {"sharding_strategy": "HYBRID_SHARD"}, id="bf16"),
    ],
)
def test_hybrid_fsdp1_on_four_ranks_trains_the_same(
    host: HostProcess, precision: str, strategy: dict[str, Any]
) -> None:
    config = {"kind": "fsdp1", "dp_replicate": 2, "dp_shard": 2, **strategy}
    bound = FP32 if precision == "fp32" else BF16
    assert_same_training(host, bound, config, precision=precision, ranks=4, **({"parity_steps": 6} | QUICK))


@pytest.mark.parametrize("grad_sync", telling(["every", "reduce_scatter", "last"], ["reduce_scatter"]))
def test_hsdp_on_four_ranks_trains_the_same_however_gradients_are_synchronised(
    host: HostProcess, grad_sync: str
) -> None:
    strategy = {"kind": "fsdp2", "dp_replicate": 2, "dp_shard": 2, "grad_sync": grad_sync}
    assert_same_training(host, FP32, strategy, ranks=4, **({"parity_steps": 6} | QUICK))


SHARDED: dict[str, dict[str, Any]] = {kind: {"kind": kind, "dp_shard": 2} for kind in ("fsdp1", "fsdp2")}
PREFETCHED = {"reshard_after_forward": False, "forward_prefetch": 2, "backward_prefetch": 2, "blocks_per_unit": 2}
KNOBS = [
    {"kind": "ddp", "grad_sync": "every", "gradient_as_bucket_view": True},
    # All that a backend's knobs change at once, and each for itself in the long run.
    SHARDED["fsdp1"]
    | {"sharding_strategy": "SHARD_GRAD_OP", "grad_sync": "last", "use_orig_params": True}
    | {"backward_prefetch": None, "forward_prefetch": True},
    SHARDED["fsdp2"] | {"grad_sync": "last"} | OWN_REDUCE_SCATTER | PREFETCHED,
    STRATEGIES["zero-2"] | {"overlap_comm": False, "contiguous_gradients": False, "round_robin_gradients": True},
    STRATEGIES["zero-3"] | {"zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0},
    STRATEGIES["zero-3"] | {"sub_group_size": 40_000, "offload_optimizer": {"pin_memory": False, "ratio": 0.5}},
]
ALONE = [
    SHARDED["fsdp1"] | {"sharding_strategy": "SHARD_GRAD_OP", "grad_sync": "last"},
    SHARDED["fsdp1"] | {"use_orig_params": True, "backward_prefetch": None, "forward_prefetch": True},
    {"kind": "fsdp1", "dp_shard": 1, "dp_replicate": 2, "sharding_strategy": "NO_SHARD"},
    SHARDED["fsdp2"] | {"grad_sync": "last"},
    SHARDED["fsdp2"] | OWN_REDUCE_SCATTER,
    {"kind": "fsdp2", "dp_shard": 1, "dp_replicate": 2, "backward_prefetch": 0},
    SHARDED["fsdp2"] | PREFETCHED,
]


@pytest.mark.parametrize(
    "strategy",
    [*KNOBS, *map(wide, ALONE)],
    ids=lambda strategy: " ".join(f"{key}={value}" for key, value in strategy.items() if "bucket_size" not in key),
)
def test_no_knob_changes_the_training(host: HostProcess, strategy: dict[str, Any]) -> None:
    assert_same_training(host, FP32, strategy, parity_steps=6 if LONG else 3, **MICRO)


@pytest.mark.parametrize("name", telling(["ddp", "zero-3", "fsdp1", "fsdp2"], ["ddp"]))
def test_collecting_garbage_by_steps_changes_no_training(host: HostProcess, name: str) -> None:
    assert_same_training(host, FP32, STRATEGIES[name], gc_every=2, parity_steps=3)


@pytest.mark.parametrize("name", telling(["ddp", "zero-3", "fsdp1", "fsdp2"], []))
def test_inputs_in_host_memory_change_no_training(host: HostProcess, name: str) -> None:
    """Alone; tests/rank/test_activation_offload.py always compares each backend with its inputs on the device."""
    changes = {"activation_checkpointing": "full", "activation_offload": True}
    assert_same_training(host, FP32, STRATEGIES[name], **changes, micro_batch=2, parity_steps=3)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        # The others are checkpointed every k-th block below.
        ("zero-3", "full"),
        wide("zero-2", "selective"),
        *(wide(name, "full") for name in ("ddp", "zero-2", "fsdp1", "fsdp2")),
        *(wide(name, "selective") for name in ("ddp", "fsdp1", "fsdp2")),
    ],
)
def test_checkpointing_changes_memory_only(host: HostProcess, name: str, mode: str) -> None:
    assert_same_training(host, FP32, STRATEGIES[name], activation_checkpointing=mode, micro_batch=4, parity_steps=3)


@pytest.mark.parametrize(
    ("name", "mode", "every"),
    [
        *(("ddp", "full", 2), ("fsdp1", "selective", 2), ("fsdp2", "full", 3), wide("zero-3", "full", 4)),
        *(wide(name, "full", 2) for name in ("zero-1", "zero-2", "zero-3", "fsdp1", "fsdp2")),
        *(wide("zero-3", "full", 3), wide("fsdp2", "full", 4), wide("zero-2", "selective", 2)),
    ],
)
def test_checkpointing_every_kth_block_changes_memory_only(host: HostProcess, name: str, mode: str, every: int) -> None:
    changes = {"activation_checkpointing": mode, "checkpoint_every": every, "micro_batch": 4, "parity_steps": 3}
    assert_same_training(host, FP32, STRATEGIES[name], **changes)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        pytest.param("ddp", GPT2, id="gpt2-ddp"),
        pytest.param("fsdp2", MIXTRAL, id="mixtral-fsdp2"),
        *(wide(name, GPT2, id=f"gpt2-{name}") for name in ("zero-3", "fsdp1", "fsdp2")),
        *(wide(name, MIXTRAL, id=f"mixtral-{name}") for name in ("ddp", "zero-3", "fsdp1")),
    ],
)
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
    second = peak("full", 2)
    assert none > second > full
    if LONG:
        assert none > peak("full", 4) > second
