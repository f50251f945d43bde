"""Failures by a declared memory limit: rank, phase and module are those that took it, and kinds sum to what was held."""

import os

import pytest

from shardtune.api_schemas.trials.leases import TraceTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from tests.rank.helpers import memory_hogs
from tests.rank.helpers.memory_hogs import HOG_BYTES, Place
from tests.support.ranks.tiny_tasks import tiny_task

pytestmark = [pytest.mark.ranks]
LONG = os.environ.get("SHARDTUNE_TEST_LONG") == "1"
LIMIT_GIB = 0.04
"""Far above what the model takes, far below the hog."""
MLP, NORM = "model.layers.2.mlp", "model.layers.1.input_layernorm"
STRATEGIES = {
    "ddp": {"kind": "ddp"},
    "zero1": {"kind": "zero", "stage": 1, "reduce_bucket_size": 100_000, "allgather_bucket_size": 100_000},
    "zero2": {"kind": "zero", "stage": 2, "reduce_bucket_size": 100_000, "allgather_bucket_size": 100_000},
    "zero3": {"kind": "zero", "stage": 3, "reduce_bucket_size": 100_000},
    "fsdp1": {"kind": "fsdp1", "dp_shard": 2},
    "fsdp2": {"kind": "fsdp2", "dp_shard": 2},
}
PLANTED = [
    ("fsdp2", Place("backward", MLP), {}),
    *((name, Place("forward", MLP), {}) for name in STRATEGIES),
    *((name, Place("backward", NORM), {}) for name in STRATEGIES if name != "fsdp2"),
    *((name, Place("optimizer", ""), {}) for name in ("ddp", "fsdp2", "zero3")),
    ("ddp", Place("backward", MLP), {"activation_checkpointing": "full"}),
    ("fsdp2", Place("forward", NORM), {"activation_checkpointing": "full"}),
]


@pytest.mark.parametrize(
    ("name", "place", "changes"),
    PLANTED if LONG else PLANTED[:1],
    ids=lambda value: "-".join(value) if isinstance(value, Place) else str(value or "-"),
)
def test_what_ran_out_is_found(name, place, changes, tmp_path):
    task = tiny_task(STRATEGIES[name], memory_limit_gib=LIMIT_GIB, **changes)
    (tmp_path / "task.json").write_text(TraceTask(trial=task, warmup_steps=1, steps=1).model_dump_json())
    memory_hogs.run(place, tmp_path)
    for rank in range(2):
        report = RankReport.model_validate_json((tmp_path / f"rank_{rank}.json").read_text())
        assert report.status == "complete", report.failure
        moment = report.moment
        assert (moment.rank, moment.phase, moment.module) == (rank, place.phase, place.module)
        assert moment.bytes > HOG_BYTES and moment.limit_bytes == round(LIMIT_GIB * 2**30)
        assert 0.95 <= sum(moment.kinds.values()) / moment.bytes <= 1.05, moment
        assert moment.kinds["parameters"] > 0
