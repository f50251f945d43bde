"""Ranks that split a model train what one process trains over the whole global batch, and a fault in that is caught.

Meshes of four ranks, every checkpointing and precision, and every model type of transformers whose plan torch has styles for,
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
from shardtune.workers.rank.model import build, tensor_plan
from tests.rank.helpers import small_models
from tests.rank.helpers.fork_server_process import HostProcess
from tests.rank.helpers.parallel_ranks import BF16, FAULT, FP32, assert_same, trajectories
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import GPT2, LLAMA, MIXTRAL, tiny_task

LONG = os.environ.get("SHARDTUNE_TEST_LONG") == "1"
SPLIT: dict[str, Any] = {"kind": "fsdp2", "dp_shard": 1, "tensor_parallel": 2}
SHORT_LLAMA = LLAMA | {"num_hidden_layers": 2}
GEMMA3 = SHORT_LLAMA | {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 8, "vocab_size": 511}
GEMMA3 |= {"tie_word_embeddings": True, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
"""Tied tables of an odd vocabulary, norms of each head, and a window across the parts of the sequence."""
SHARED = {"micro_batch": 2 if LONG else 4, "parity_steps": 2, "max_grad_norm": 0.3}
"""Each micro batch costs a quarter of a second of dispatching distributed tensors."""
QUICK: dict[str, TrialTask] = {
    "llama": tiny_task(SPLIT, model=SHORT_LLAMA, **SHARED),
    "gemma3, full": tiny_task(SPLIT, model=GEMMA3, activation_checkpointing="full", **SHARED),
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[StepRecord, ...]]:
    return trajectories({**QUICK, f"llama, {FAULT}": QUICK["llama"]}, tmp_path_factory.mktemp("tensor"))


@pytest.mark.ranks
@pytest.mark.parametrize("name", QUICK)
def test_ranks_that_split_a_model_train_the_same(quick: dict[str, tuple[StepRecord, ...]], name: str) -> None:
    assert_same(quick[name], QUICK[name], FP32)


@pytest.mark.ranks
def test_gradients_of_norms_that_are_not_summed_are_caught(quick: dict[str, tuple[StepRecord, ...]]) -> None:
    """Detection by the weights' sum of squares: loss and norm of the first step hide it."""
    full, faulty = train(QUICK["llama"])[0], quick[f"llama, {FAULT}"][0]
    difference = parity.step_difference(full, faulty, parity.FP32, "one process")
    assert difference is not None and difference.startswith("parameter square sum of step 0")


@pytest.mark.parametrize(
    ("model", "divisor", "why"),
    [
        (LLAMA, 2, None),
        (GEMMA3, 2, None),
        (LLAMA | {"num_key_value_heads": 1}, 1, None),
        (GPT2, 1, "transformers has no plan"),
        (MIXTRAL, 1, "for which torch has no style"),
    ],
    ids=["llama", "gemma3", "one head of keys", "gpt2", "mixtral"],
)
def test_a_model_says_whether_it_can_be_split(model: dict[str, Any], divisor: int, why: str | None) -> None:
    widths_of = tensor_plan.widths_of(_built(model))
    assert widths_of.tensor_divisor == divisor
    assert widths_of.tensor_note is None if why is None else why in (widths_of.tensor_note or ""), widths_of


@pytest.mark.ranks
def test_a_rank_rejects_what_cannot_be_split(host: HostProcess) -> None:
    """A configuration by hand: no profile has been made."""
    report = host.run(tiny_task(SPLIT, model=GPT2))[0]
    assert report.failure is not None and report.failure.kind == "illegal"
    assert "tensor_parallel (2) is not for this model: transformers has no plan" in report.failure.message


def _built(config: dict[str, Any]) -> Any:
    return build.build(ModelSpec(name="m", config=config), Workload(sequence_length=32, global_batch=8))


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_they_train_the_same_with_every_checkpointing(tmp_path: Path, precision: str) -> None:
    models = {"llama": SHORT_LLAMA, "gemma3": GEMMA3, "phi3": SHORT_LLAMA | {"model_type": "phi3", "pad_token_id": 0}}
    models |= {kind: SHORT_LLAMA | {"model_type": kind} for kind in ("olmo2", "gpt_neox", "qwen3")}
    tasks = {
        f"{name}, {mode}": tiny_task(SPLIT, model=model, activation_checkpointing=mode, precision=precision, **SHARED)
        for (name, model), mode in itertools.product(models.items(), ("none", "selective", "full"))
    }
    actual_trajectories = trajectories(tasks, tmp_path)
    for name, task in tasks.items():
        assert_same(actual_trajectories[name], task, FP32 if precision == "fp32" else BF16)


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
def test_they_train_the_same_on_meshes_of_four_ranks(tmp_path: Path) -> None:
    """Alone, over shards, over replicas, and where ranks share sequences besides."""
    four = SHORT_LLAMA | {"num_key_value_heads": 4}
    window = four | {"model_type": "mistral", "sliding_window": 8}
    meshes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "4": (SPLIT | {"tensor_parallel": 4}, {}),
        "2, sharded": (SPLIT | {"dp_shard": 2}, {}),
        "2, sharded, reduced last": (SPLIT | {"dp_shard": 2, "grad_sync": "last"}, {"micro_batch": 1}),
        "2, replicated": (SPLIT | {"dp_replicate": 2}, {"activation_checkpointing": "full"}),
        "2, context 2": (SPLIT | {"dp_shard": 2}, {"context_parallel": 2}),
        "2, context 2, window": (
            SPLIT | {"dp_shard": 2},
            {"context_parallel": 2, "model": window, "activation_checkpointing": "full"},
        ),
    }
    tasks = {
        name: tiny_task(strategy, ranks=4, **{"model": four, **SHARED, **changes})
        for name, (strategy, changes) in meshes.items()
    }
    actual_trajectories = trajectories(tasks, tmp_path, ranks=4)
    for name, task in tasks.items():
        assert_same(actual_trajectories[name], task, FP32)


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
def test_every_model_type_with_a_plan_trains_the_same(tmp_path: Path) -> None:
    tasks = {}
    for config in small_models.configs():
        with contextlib.suppress(Exception):  # what does not build with these sizes
            if tensor_plan.widths_of(_built(config)).tensor_divisor > 1:
                tasks[config["model_type"]] = tiny_task(SPLIT, model=config, **SHARED)
    actual_trajectories = trajectories(tasks, tmp_path)
    assert [kind for kind, records in actual_trajectories.items() if not records] == []
    assert len(actual_trajectories) >= 30
    apart = {kind: deviation(records, train(tasks[kind])) for kind, records in actual_trajectories.items()}
    assert {kind: item for kind, item in apart.items() if any(item[name] > FP32[name] for name in FP32)} == {}
