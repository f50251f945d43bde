"""Compiled blocks under each backend in bfloat16: more blocks than Dynamo recompiles one function, and the same training.

All backends with SHARDTUNE_TEST_LONG=1. A trial whose blocks reach the limit of recompilations is rejected
(`workers.blocks.prepare`), so a trial that ends shows that no block ran uncompiled.
"""

import os
from typing import Any

import pytest

from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.ranks.reference_training import deviation
from tests.support.ranks.tiny_tasks import LLAMA, tiny_task

pytestmark = pytest.mark.ranks

LONG = os.environ.get("SHARDTUNE_TEST_LONG") == "1"
BUCKETS = {"reduce_bucket_size": 50_000, "allgather_bucket_size": 50_000}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    "zero-1": {"kind": "zero", "stage": 1, **BUCKETS},
    "zero-2": {"kind": "zero", "stage": 2, **BUCKETS},
    "zero-3": {"kind": "zero", "stage": 3, **BUCKETS},
    "fsdp1": {"kind": "fsdp1", "dp_shard": 2, "use_orig_params": True},
    "fsdp2": {"kind": "fsdp2", "dp_shard": 2},
}
BLOCKS = 12
"""Dynamo's limit is 8 (torch 2.13). DDP reached it with 16 blocks on a GPU, and two blocks had not shown it."""
MOST_FRAMES = {"fsdp2": 3, "zero-3": 3 * (BLOCKS + 1)}
"""Maximum number of compiled frames, where it is not 1. ZeRO-3's hooks run between the layers of a block and end a graph
there, anew in each block (DeepSpeed 0.19.8)."""
BOUND = {"loss": 5e-4, "grad_norm": 3e-2, "parameter_sum": 5e-4, "parameter_square_sum": 1e-4}
"""Bounds of uncompiled bfloat16 (`test_parity`): a fused kernel rounds once where several round each."""


@pytest.mark.parametrize("precision", ["bf16-mixed", *(["bf16-autocast"] if LONG else [])])
@pytest.mark.parametrize("name", STRATEGIES if LONG else ["ddp"])
def test_twelve_compiled_blocks_train_the_same(host: HostProcess, name: str, precision: str) -> None:
    model = LLAMA | {"num_hidden_layers": BLOCKS, "hidden_size": 32, "intermediate_size": 64}
    task = tiny_task(STRATEGIES[name], precision=precision, model=model, parity_steps=3, micro_batch=2)
    compiled = task.model_copy(update={"config": task.config.model_copy(update={"compile": True})})
    reports = [host.run(task)[0], host.run(compiled)[0]]
    assert [report.status for report in reports] == ["complete"] * 2, reports[1].failure
    difference = deviation(reports[1].trajectory, reports[0].trajectory)
    assert all(difference[name] <= bound for name, bound in BOUND.items()), difference
    compiled_frames = reports[1].compiled
    assert reports[0].compiled is None and compiled_frames is not None
    assert compiled_frames.frames <= MOST_FRAMES.get(name, 1), "equal blocks share their compilation"
    assert compiled_frames.recompilations == 0 and compiled_frames.while_timed == 0
    assert (compiled_frames.graph_breaks > 0) == (name == "zero-3")
