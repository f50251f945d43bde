"""Ranks that share samples train what one process trains over the whole global batch, and a fault in that is caught.

Every backend, checkpointing and precision, and every model type of transformers that says it can, with SHARDTUNE_TEST_LONG=1.
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
from shardtune.workers.rank.model import shared_heads
from tests.rank.helpers import small_models
from tests.rank.helpers.fork_server_process import HostProcess
from tests.rank.helpers.parallel_ranks import BF16, FAULT, FP32, assert_same, trajectories
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import GPT2, LLAMA, MIXTRAL, tiny_task

LONG = os.environ.get("SHARDTUNE_TEST_LONG") == "1"
SHORT_LLAMA = LLAMA | {"num_hidden_layers": 2}
MISTRAL = SHORT_LLAMA | {"model_type": "mistral", "sliding_window": 8}
"""Model whose attention window reaches from one rank's part of the sequence into the other's."""
BUCKETS = {"reduce_bucket_size": 50_000, "allgather_bucket_size": 50_000}
SHARED = {"context_parallel": 2, "micro_batch": 2, "parity_steps": 3, "max_grad_norm": 0.3}
BACKENDS: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    "zero-1": {"kind": "zero", "stage": 1, **BUCKETS},
    "zero-2": {"kind": "zero", "stage": 2, **BUCKETS},
    "zero-3": {"kind": "zero", "stage": 3, **BUCKETS},
    "fsdp1": {"kind": "fsdp1", "dp_shard": 2},
    "fsdp2": {"kind": "fsdp2", "dp_shard": 2},
}
QUICK: dict[str, TrialTask] = {
    "llama, ddp": tiny_task(BACKENDS["ddp"], model=SHORT_LLAMA, **SHARED),
    "mistral, fsdp2": tiny_task(BACKENDS["fsdp2"], model=MISTRAL, activation_checkpointing="full", **SHARED),
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[StepRecord, ...]]:
    folder = tmp_path_factory.mktemp("context")
    return trajectories({**QUICK, f"llama, ddp, {FAULT}": QUICK["llama, ddp"]}, folder)


@pytest.mark.ranks
@pytest.mark.parametrize("name", QUICK)
def test_shared_samples_train_the_same(quick: dict[str, tuple[StepRecord, ...]], name: str) -> None:
    assert_same(quick[name], QUICK[name], FP32)


@pytest.mark.ranks
def test_a_loss_without_its_factor_is_caught(quick: dict[str, tuple[StepRecord, ...]]) -> None:
    full, faulty = train(QUICK["llama, ddp"])[0], quick[f"llama, ddp, {FAULT}"][0]
    difference = parity.step_difference(full, faulty, parity.FP32, "one process")
    assert difference is not None and difference.startswith("loss of step 0")
    norms = faulty.model_copy(update={"loss": full.loss})
    difference = parity.step_difference(full, norms, parity.FP32, "one process")
    assert difference is not None and difference.startswith("gradient norm of step 0"), (
        "also where the loss alone would not tell"
    )


@pytest.mark.parametrize(
    ("model", "heads", "why"),
    [
        (LLAMA, 2, None),
        (GPT2, 4, None),
        (MISTRAL, 2, None),
        (LLAMA | {"model_type": "qwen3_next", "head_dim": 16}, 1, "recurrent layers"),
        (LLAMA | {"model_type": "gpt_oss", "head_dim": 16}, 1, "attention 'eager'"),
        ({"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 512}, 1, "attention 'eager'"),
        ({"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 512}, 1, "attention 'eager'"),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_a_model_says_whether_its_heads_can_be_shared_out(model: dict[str, Any], heads: int, why: str | None) -> None:
    actual = shared_heads.of(ModelSpec(name="m", config=model), Workload(sequence_length=32, global_batch=8))
    assert actual.context_heads == heads
    assert actual.context_note is None if why is None else why in (actual.context_note or ""), actual


@pytest.mark.ranks
def test_a_rank_rejects_what_cannot_be_shared_out(host: HostProcess) -> None:
    """A configuration by hand: no profile has been made. Four ranks would share two heads of keys."""
    report = host.run(tiny_task({"kind": "ddp"}, ranks=4, context_parallel=4))[0]
    assert report.failure is not None and report.failure.kind == "illegal"
    assert "context_parallel (4) must divide the heads" in report.failure.message


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_shared_samples_train_the_same_with_everything(tmp_path: Path, precision: str) -> None:
    models = {"llama": SHORT_LLAMA, "mistral": MISTRAL, "gpt2": GPT2, "mixtral": MIXTRAL}
    tasks = {
        f"{backend}, {model}, {mode}": tiny_task(
            BACKENDS[backend], model=models[model], activation_checkpointing=mode, precision=precision, **SHARED
        )
        for backend, model, mode in itertools.product(BACKENDS, models, ("none", "selective", "full"))
        if (backend, mode) != ("zero-3", "selective")
    }
    actual_trajectories = trajectories(tasks, tmp_path)
    for name, task in tasks.items():
        assert_same(actual_trajectories[name], task, FP32 if precision == "fp32" else BF16)


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
def test_every_model_type_that_says_it_can_trains_the_same(tmp_path: Path) -> None:
    tasks = {}
    for config in small_models.configs():
        with contextlib.suppress(Exception):  # what does not build with these sizes
            actual = shared_heads.of(ModelSpec(name="m", config=config), Workload(sequence_length=32, global_batch=8))
            if actual.context_heads > 1:
                tasks[config["model_type"]] = tiny_task(BACKENDS["ddp"], model=config, **SHARED)
    # DDP fails by itself where a model has parameters that its loss does not use (BERT's kind).
    actual = {kind: records for kind, records in trajectories(tasks, tmp_path).items() if records}
    assert len(actual) >= 70
    apart = {kind: deviation(records, train(tasks[kind])) for kind, records in actual.items()}
    assert {kind: item for kind, item in apart.items() if any(item[name] > FP32[name] for name in FP32)} == {}


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
def test_shared_samples_train_the_same_on_meshes_of_four_ranks(tmp_path: Path) -> None:
    hybrid = {"dp_replicate": 2, "dp_shard": 2}
    strategies = {
        "hsdp": {"kind": "fsdp2", **hybrid, "grad_sync": "reduce_scatter"},
        "hybrid fsdp1": {"kind": "fsdp1", **hybrid, "sharding_strategy": "HYBRID_SHARD"},
        "hpz": BACKENDS["zero-3"] | {"zero_hpz_partition_size": 2},
    }
    four = SHORT_LLAMA | {"num_key_value_heads": 4}
    tasks = {
        f"{name}, {size}": tiny_task(strategy, ranks=4, model=four, **SHARED | {"context_parallel": size})
        for (name, strategy), size in itertools.product(strategies.items(), (2, 4))
        if (name, size) != ("hpz", 4)  # DeepSpeed makes the groups of hpZ once in a process
    }
    actual_trajectories = trajectories(tasks, tmp_path, ranks=4)
    for name, task in tasks.items():
        assert_same(actual_trajectories[name], task, FP32)
