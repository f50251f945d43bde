"""Stages of a pipeline train what one process trains over the whole global batch, and a fault in that is caught.

Meshes of four ranks, every checkpointing and precision, and every model type of transformers that can be cut, with
SHARDTUNE_TEST_LONG=1.
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
from shardtune.workers.rank.model import stage_plan
from shardtune.workers.rank.training import model_summary
from tests.rank.helpers import small_models
from tests.rank.helpers.fork_server_process import HostProcess
from tests.rank.helpers.parallel_ranks import BF16, FAULT, FP32, assert_same, trajectories
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import GPT2, LLAMA, MIXTRAL, tiny_task

LONG = os.environ.get("SHARDTUNE_TEST_LONG") == "1"
CUT: dict[str, Any] = {"kind": "fsdp2", "dp_shard": 1, "pipeline_parallel": 2}
INTERLEAVED: dict[str, Any] = {"pipeline_schedule": "interleaved_1f1b", "pipeline_virtual_stages": 2}
SPLIT: dict[str, Any] = {"pipeline_virtual_stages": 2, "reshard_after_forward": False, "grad_sync": "last"}
ZERO_BUBBLE = {
    name: SPLIT | {"pipeline_schedule": name} for name in ("interleaved_zero_bubble", "zbv_zero_bubble", "dual_pipe_v")
}
"""Schedules that compute gradients of weights later."""
GEMMA3 = LLAMA | {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 8, "num_hidden_layers": 2}
GEMMA3 |= {"tie_word_embeddings": True, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
MPT = {"model_type": "mpt", "vocab_size": 256, "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 128}
SHARED = {"micro_batch": 2, "parity_steps": 3, "max_grad_norm": 0.3}
QUICK: dict[str, TrialTask] = {
    # Three blocks on two stages, tied tables, position tables, full recomputation.
    "gpt2, full": tiny_task(CUT, model=GPT2, activation_checkpointing="full", **SHARED),
    # Three stages of two blocks or one on each rank.
    "gpt2, interleaved": tiny_task(
        CUT | INTERLEAVED | {"pipeline_virtual_stages": 3}, model=GPT2 | {"n_layer": 8}, **SHARED
    ),
    "llama, zero bubble": tiny_task(CUT | ZERO_BUBBLE["interleaved_zero_bubble"], **SHARED),
    # The first rank has both uses of the tied tables.
    "gpt2, zbv": tiny_task(
        CUT | ZERO_BUBBLE["zbv_zero_bubble"], model=GPT2 | {"n_layer": 5}, activation_checkpointing="full", **SHARED
    ),
    "gpt2, dual_pipe_v": tiny_task(CUT | ZERO_BUBBLE["dual_pipe_v"], model=GPT2 | {"n_layer": 5}, **SHARED),
    "llama, gpipe": tiny_task(CUT | {"pipeline_schedule": "gpipe", "grad_sync": "last"}, **SHARED),
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[StepRecord, ...]]:
    return trajectories({**QUICK, f"gpt2, {FAULT}": QUICK["gpt2, full"]}, tmp_path_factory.mktemp("pipeline"))


@pytest.mark.ranks
@pytest.mark.parametrize("name", QUICK)
def test_stages_train_the_same(quick: dict[str, tuple[StepRecord, ...]], name: str) -> None:
    assert_same(quick[name], QUICK[name], FP32)


@pytest.mark.ranks
def test_tied_tables_whose_gradients_are_not_summed_are_caught(quick: dict[str, tuple[StepRecord, ...]]) -> None:
    full, faulty = train(QUICK["gpt2, full"])[0], quick[f"gpt2, {FAULT}"][0]
    difference = parity.step_difference(full, faulty, parity.FP32, "one process")
    assert difference is not None and difference.startswith("gradient norm of step 0")


@pytest.mark.parametrize(
    ("model", "blocks", "why"),
    [
        (LLAMA, 4, None),
        (GPT2, 3, None),
        (GEMMA3, 2, None),
        (MIXTRAL, 2, None),
        (MPT, 1, "return more than hidden states"),
        (LLAMA | {"num_hidden_layers": 1}, 1, "no blocks that repeat"),
    ],
    ids=["llama", "gpt2", "gemma3", "mixtral", "mpt", "one block"],
)
def test_a_model_says_whether_it_can_be_cut(model: dict[str, Any], blocks: int, why: str | None) -> None:
    actual = model_summary.of(ModelSpec(name="m", config=model), WORKLOAD)
    assert actual.pipeline_blocks == blocks, actual
    assert actual.pipeline_note is None if why is None else why in (actual.pipeline_note or ""), actual


WORKLOAD = Workload(sequence_length=32, global_batch=8)


@pytest.mark.ranks
def test_a_rank_rejects_what_cannot_be_cut(host: HostProcess) -> None:
    """A configuration by hand: no profile has been made."""
    report = host.run(tiny_task(CUT, model=MPT))[0]
    assert report.failure is not None and report.failure.kind == "illegal"
    assert "pipeline_parallel (2) is not for this model: its blocks return more" in report.failure.message


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_they_train_the_same_with_every_checkpointing(tmp_path: Path, precision: str) -> None:
    models = {"llama": LLAMA, "gpt2": GPT2 | {"n_layer": 5}, "gemma3": GEMMA3, "mixtral": MIXTRAL}
    models = {name: model | {"num_hidden_layers": 4} for name, model in models.items()}
    models |= {kind: LLAMA | {"model_type": kind} for kind in ("olmo2", "gpt_neox", "qwen3")}
    schedules = {"1f1b": {}, "gpipe": {"pipeline_schedule": "gpipe"}, "interleaved": INTERLEAVED, **ZERO_BUBBLE}
    tasks = {
        f"{name}, {mode}, {schedule}": tiny_task(
            CUT | schedules[schedule],
            model=model,
            activation_checkpointing=mode,
            precision=precision,
            **SHARED,
        )
        for (name, model), mode, schedule in itertools.product(models.items(), ("none", "selective", "full"), schedules)
        if schedule not in ZERO_BUBBLE or mode != "selective"
    }
    actual_trajectories = trajectories(tasks, tmp_path)
    for name, task in tasks.items():
        assert_same(actual_trajectories[name], task, FP32 if precision == "fp32" else BF16)


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
def test_they_train_the_same_on_meshes_of_four_ranks(tmp_path: Path) -> None:
    """Alone, over shards, over replicas, and with split blocks or shared sequences."""
    four = LLAMA | {"num_key_value_heads": 4}
    tied = GEMMA3 | {"num_key_value_heads": 4, "num_hidden_layers": 3, "vocab_size": 511}
    ten = four | {"num_hidden_layers": 10}
    longer = tied | {"num_hidden_layers": 5}
    full = {"activation_checkpointing": "full"}
    meshes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "4": (CUT | {"pipeline_parallel": 4}, {}),
        "2, sharded": (CUT | {"dp_shard": 2}, full),
        "2, sharded, tied": (CUT | {"dp_shard": 2}, {"model": tied}),
        "2, sharded, kept": (CUT | {"dp_shard": 2, "reshard_after_forward": False, "grad_sync": "last"}, {}),
        "2, sharded, units": (CUT | {"dp_shard": 2, "blocks_per_unit": 2, "backward_prefetch": 2}, {}),
        "2, replicated": (CUT | {"dp_replicate": 2}, {}),
        "2, tensor 2": (CUT | {"tensor_parallel": 2}, full),
        "2, tensor 2, tied": (CUT | {"tensor_parallel": 2}, {"model": tied}),
        "2, context 2": (CUT | {"dp_shard": 2}, {"context_parallel": 2}),
        "4, interleaved": (CUT | INTERLEAVED | {"pipeline_parallel": 4}, {"model": ten}),
        "2, interleaved, sharded, tied": (CUT | INTERLEAVED | {"dp_shard": 2}, {"model": longer} | full),
        "2, interleaved, replicated": (CUT | INTERLEAVED | {"dp_replicate": 2}, {"model": longer}),
        "2, interleaved, units": (CUT | INTERLEAVED | {"dp_shard": 2, "blocks_per_unit": 2}, {}),
        "2, interleaved, tensor 2, tied": (CUT | INTERLEAVED | {"tensor_parallel": 2}, {"model": longer}),
        "2, interleaved, context 2": (CUT | INTERLEAVED | {"dp_shard": 2}, {"context_parallel": 2}),
        "2, interleaved, experts 2": (
            CUT | INTERLEAVED | {"dp_shard": 2, "expert_parallel": 2},
            {"model": MIXTRAL | {"num_hidden_layers": 4}},
        ),
    }
    for schedule, fields in ZERO_BUBBLE.items():
        split = {
            "sharded, tied": (CUT | fields | {"dp_shard": 2}, {"model": longer} | full),
            "replicated": (CUT | fields | {"dp_replicate": 2}, {"model": longer}),
            "tensor 2, tied": (CUT | fields | {"tensor_parallel": 2}, {"model": longer}),
            "context 2": (CUT | fields | {"dp_shard": 2}, {"context_parallel": 2}),
        }
        meshes |= {f"2, {schedule}, {name}": item for name, item in split.items()}
    meshes["4, zbv"] = (CUT | ZERO_BUBBLE["zbv_zero_bubble"] | {"pipeline_parallel": 4}, {"model": ten})
    tasks = {
        name: tiny_task(strategy, ranks=4, **{"model": four, **SHARED, "micro_batch": 1, **changes})
        for name, (strategy, changes) in meshes.items()
    }
    actual_trajectories = trajectories(tasks, tmp_path, ranks=4)
    for name, task in tasks.items():
        assert_same(actual_trajectories[name], task, FP32)


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
def test_every_model_type_that_can_be_cut_trains_the_same(tmp_path: Path) -> None:
    tasks = {}
    for config in small_models.configs():
        with contextlib.suppress(Exception):  # what does not build with these sizes
            if stage_plan.of(ModelSpec(name="m", config=config), WORKLOAD)[0] is not None:
                tasks[config["model_type"]] = tiny_task(CUT, model=config, **SHARED)
    actual_trajectories = trajectories(tasks, tmp_path)
    assert [kind for kind, records in actual_trajectories.items() if not records] == []
    assert len(actual_trajectories) >= 30
    apart = {kind: deviation(records, train(tasks[kind])) for kind, records in actual_trajectories.items()}
    # Without norms' weights, as OLMo has none, the sum of all weights is near 0.
    bound = FP32 | {"parameter_sum": 1e-5}
    assert {kind: item for kind, item in apart.items() if any(item[name] > bound[name] for name in bound)} == {}
