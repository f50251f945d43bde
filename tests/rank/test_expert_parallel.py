"""Ranks that divide experts train what one process trains over the whole global batch, and a fault in that is caught.

Meshes of four ranks, every checkpointing and precision, and every model type of transformers with experts that can be divided,
with SHARDTUNE_TEST_LONG=1.
"""

import contextlib
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import StepRecord
from shardtune.tuner.verdict import parity
from shardtune.workers.rank.model import build, experts
from shardtune.workers.rank.training import model_summary
from tests.rank.helpers import small_models
from tests.rank.helpers.fork_server_process import HostProcess
from tests.rank.helpers.parallel_ranks import BF16, FAULT, FP32, assert_same, trajectories
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import LLAMA, MIXTRAL, tiny_task

LONG = os.environ.get("SHARDTUNE_TEST_LONG") == "1"
DIVIDED: dict[str, Any] = {"kind": "fsdp2", "dp_shard": 2, "expert_parallel": 2}
QWEN2 = MIXTRAL | {"model_type": "qwen2_moe", "num_experts": 4, "moe_intermediate_size": 32}
QWEN2 |= {"shared_expert_intermediate_size": 48, "decoder_sparse_step": 1}
DEEPSEEK = LLAMA | {
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "first_k_dense_replace": 1,
}
DEEPSEEK |= {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32, "kv_lora_rank": 16}
DEEPSEEK |= {
    "q_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_hidden_layers": 3,
}
LLAMA4 = MIXTRAL | {"model_type": "llama4_text", "head_dim": 16, "intermediate_size_mlp": 64}
SHARED = {"micro_batch": 2, "parity_steps": 3, "max_grad_norm": 0.3}
QUICK: dict[str, TrialTask] = {
    "mixtral, full": tiny_task(DIVIDED, model=MIXTRAL, activation_checkpointing="full", **SHARED),
    # Shared experts beside the divided ones; two micro batches before gradients are reduced, in units of two blocks.
    "qwen2, once": tiny_task(DIVIDED | {"grad_sync": "last", "blocks_per_unit": 2}, model=QWEN2, **SHARED),
}
WORKLOAD = Workload(sequence_length=32, global_batch=8)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[StepRecord, ...]]:
    return trajectories({**QUICK, f"mixtral, {FAULT}": QUICK["mixtral, full"]}, tmp_path_factory.mktemp("experts"))


@pytest.mark.ranks
@pytest.mark.parametrize("name", QUICK)
def test_ranks_that_divide_experts_train_the_same(quick: dict[str, tuple[StepRecord, ...]], name: str) -> None:
    assert_same(quick[name], QUICK[name], FP32)


@pytest.mark.ranks
def test_gradients_of_experts_that_are_not_divided_are_caught(quick: dict[str, tuple[StepRecord, ...]]) -> None:
    full, faulty = train(QUICK["mixtral, full"])[0], quick[f"mixtral, {FAULT}"][0]
    difference = parity.step_difference(full, faulty, parity.FP32, "one process")
    assert difference is not None and difference.startswith("gradient norm of step 0")


@pytest.mark.parametrize(
    ("model", "count", "width", "why"),
    [
        (MIXTRAL, 4, 64, None),
        (QWEN2, 4, 64, None),
        (DEEPSEEK, 4, 64, None),
        (LLAMA, 1, 1, "it has no experts"),
        (LLAMA4, 1, 1, "not called with tokens, the experts they chose and their weights"),
    ],
    ids=["mixtral", "qwen2", "deepseek", "llama", "llama4"],
)
def test_a_model_says_whether_its_experts_can_be_divided(
    model: dict[str, Any], count: int, width: int, why: str | None
) -> None:
    actual = model_summary.of(ModelSpec(name="m", config=model), WORKLOAD)
    assert (actual.experts, actual.expert_width) == (count, width), actual
    assert actual.expert_note is None if why is None else why in (actual.expert_note or ""), actual


@pytest.mark.ranks
def test_a_rank_rejects_a_model_without_experts(host: HostProcess) -> None:
    """A configuration by hand: no profile has been made."""
    report = host.run(tiny_task(DIVIDED))[0]
    assert report.failure is not None and report.failure.kind == "illegal"
    assert "expert_parallel (2) is not for this model: it has no experts" in report.failure.message


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_they_train_the_same_with_every_checkpointing(tmp_path: Path, precision: str) -> None:
    models = {"mixtral": MIXTRAL, "qwen2": QWEN2, "deepseek": DEEPSEEK}
    models |= {kind: QWEN2 | {"model_type": kind} for kind in ("qwen3_moe", "olmoe")}
    tasks = {
        f"{name}, {mode}": tiny_task(DIVIDED, model=model, activation_checkpointing=mode, precision=precision, **SHARED)
        for (name, model), mode in itertools.product(models.items(), ("none", "selective", "full"))
    }
    actual_trajectories = trajectories(tasks, tmp_path)
    for name, task in tasks.items():
        assert_same(actual_trajectories[name], task, FP32 if precision == "fp32" else BF16)


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
def test_they_train_the_same_on_meshes_of_four_ranks(tmp_path: Path) -> None:
    """Alone, over shards of whole experts or of parts of them, over replicas, with stages or shared sequences."""
    full, over_two = {"activation_checkpointing": "full"}, DIVIDED | {"dp_shard": 4}
    two = MIXTRAL | {"num_local_experts": 2}
    meshes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "4": (over_two | {"expert_parallel": 4}, full),
        "2, sharded": (over_two, {}),
        "2, sharded within experts": (over_two, {"model": two}),
        "2, kept": (over_two | {"reshard_after_forward": False, "grad_sync": "last"}, {}),
        "2, in groups": (over_two | {"reshard_after_forward": 2}, full),
        "2, ahead": (over_two | {"forward_prefetch": 1, "backward_prefetch": 2}, {}),
        "2, replicated": (DIVIDED | {"dp_replicate": 2}, full),
        "2, replicated, reduced late": (DIVIDED | {"dp_replicate": 2, "grad_sync": "reduce_scatter"}, {}),
        "2, on the host": (over_two | {"cpu_offload": True}, {}),
        "2, context 2": (over_two, {"context_parallel": 2}),
        "2, stages 2": (DIVIDED | {"pipeline_parallel": 2}, full),
        "2, stages 2, dense first": (DIVIDED | {"pipeline_parallel": 2}, {"model": DEEPSEEK}),
    }
    tasks = {
        name: tiny_task(strategy, ranks=4, **{"model": MIXTRAL, **SHARED, "micro_batch": 1, **changes})
        for name, (strategy, changes) in meshes.items()
    }
    actual_trajectories = trajectories(tasks, tmp_path, ranks=4)
    for name, task in tasks.items():
        assert_same(actual_trajectories[name], task, FP32)


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
def test_every_model_type_whose_experts_can_be_divided_trains_the_same(tmp_path: Path) -> None:
    tasks = {}
    for config in small_models.configs():
        with contextlib.suppress(Exception):  # what does not build with these sizes
            experts.of(build.build(ModelSpec(name="m", config=config), WORKLOAD))
            task = tiny_task(DIVIDED, model=config, **SHARED)
            train(task)
            tasks[config["model_type"]] = task
    actual: dict[str, tuple[StepRecord, ...]] = {}
    # Forks have a limit of time, whatever they have to do.
    for first in range(0, len(tasks), 10):
        folder = tmp_path / str(first)
        folder.mkdir()
        actual |= trajectories(dict(itertools.islice(tasks.items(), first, first + 10)), folder)
    assert [kind for kind, records in actual.items() if not records] == []
    assert len(actual) >= 20
    apart = {kind: deviation(records, train(tasks[kind])) for kind, records in actual.items()}
    bound = FP32 | {"parameter_sum": 1e-5}
    assert {kind: item for kind, item in apart.items() if any(item[name] > bound[name] for name in bound)} == {}
