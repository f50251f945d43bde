"""A trace is a run of its own: each rank leaves a file, in which the analysis finds steps, parts and collectives."""

import gzip
import os

import pytest

from shardtune.api_schemas.trials.leases import TraceTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.traces import kineto
from shardtune.traces.diagnose import diagnosis
from tests.support.ranks.tiny_tasks import tiny_task

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(
        os.environ.get("SHARDTUNE_TEST_LONG") != "1",
        reason="every backend: make test-long; tests/endtoend/test_tune_command.py explains one",
    ),
]

STRATEGIES = {
    "fsdp2": ({"kind": "fsdp2", "dp_shard": 2}, {"all_gather", "reduce_scatter"}),
    "ddp": ({"kind": "ddp"}, {"all_reduce"}),
    "fsdp1": ({"kind": "fsdp1", "dp_shard": 2}, {"all_gather", "reduce_scatter"}),
    "zero1": ({"kind": "zero", "stage": 1}, {"all_gather"}),
    "zero2": ({"kind": "zero", "stage": 2}, {"all_gather"}),
    "zero3": ({"kind": "zero", "stage": 3}, {"all_gather", "reduce_scatter"}),
    "ddp, context": ({"kind": "ddp"}, {"all_reduce", "all_to_all"}),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_ranks_leave_traces_that_say_where_their_steps_went(host, name):
    strategy, kinds = STRATEGIES[name]
    folder = host.prepare(
        TraceTask(trial=tiny_task(strategy, context_parallel=2 if "context" in name else 1), warmup_steps=2, steps=2)
    )
    codes = host.run_folder(folder, 2)
    reports = [RankReport.model_validate_json((folder / f"rank_{rank}.json").read_text()) for rank in range(2)]
    assert codes == [0, 0], [report.failure for report in reports]
    assert len(reports[0].losses) == 6 and reports[0].losses == reports[1].losses
    tables = []
    for rank in range(2):
        with gzip.open(folder / "traces" / f"rank_{rank}.json.gz") as file:
            tables.append(kineto.read(file, f"rank_{rank}"))
    actual_diagnosis = diagnosis(tables)
    assert {(step.rank, step.step) for step in actual_diagnosis.steps} == {(0, 4), (0, 5), (1, 4), (1, 5)}
    assert kinds <= {collective.kind for collective in actual_diagnosis.collectives} and not actual_diagnosis.notes
    assert all(collective.message_bytes and collective.group_size == 2 for collective in actual_diagnosis.collectives)
    assert all(step.parts.optimizer_s > 0 and step.parts.compute_s > 0 for step in actual_diagnosis.steps)
