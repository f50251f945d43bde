"""Two workers divide this machine: their trials go side by side, and what decides runs alone, by the recorded leases."""

import os
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select

from shardtune.db.session import Database
from shardtune.db.tables.trials import AttemptRow, RunRow
from shardtune.service.leasing.host_exclusivity import needs_exclusive_host
from tests.support.processes.stack import Stack, study, until

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("SHARDTUNE_TEST_LONG") != "1", reason="minutes of real ranks: make test-long"),
    pytest.mark.skipif(len(psutil.Process().cpu_affinity()) < 2, reason="each of two workers needs a core"),
]
Lease = tuple[AttemptRow, RunRow]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    new_stack = Stack(tmp_path)
    new_stack.start_service()
    yield new_stack
    new_stack.close()


def together(lease: Lease, other: Lease) -> bool:
    """Whether two leases were held at the same time."""
    (first, _), (second, _) = lease, other
    return first.started_at < second.finished_at and second.started_at < first.finished_at


def test_searches_of_two_studies_go_side_by_side_and_validation_runs_have_the_machine_alone(
    stack: Stack, tmp_path: Path
) -> None:
    agent = stack.start_worker(options=["--split", "1"])
    workers = until(
        lambda: len(workers := stack.http.get("/v1/workers").json()["workers"]) == 2 and workers, 60, "both"
    )
    (cluster,) = {str(worker["inventory"]["cluster"]): worker["inventory"]["cluster"] for worker in workers}.values()
    assert cluster["gpus_per_node"] == 1
    devices = [set(worker["inventory"]["host_partition"]["devices"]) for worker in workers]
    assert devices[0].isdisjoint(devices[1])
    studies = [stack.create(study(cluster=cluster)) for _ in workers]
    until(
        lambda: all(stack.study(single_study)["state"] != "running" for single_study in studies),
        500,
        "both studies end",
    )
    assert [stack.study(single_study)["state"] for single_study in studies] == ["complete"] * 2

    database = Database(f"sqlite:///{tmp_path}/shardtune.sqlite3")
    with database.read() as session:
        query = select(AttemptRow, RunRow).join(RunRow, RunRow.id == AttemptRow.run_id)
        leases: list[Lease] = [tuple(row) for row in session.execute(query)]
    database.close()
    pairs = [pair for pair in combinations(leases, 2) if together(*pair)]
    decided = [lease for lease in leases if needs_exclusive_host(lease[1].purpose, None)]
    assert len(decided) > 10 and not [pair for pair in pairs if any(lease in decided for lease in pair)]
    beside = {run.id for pair in pairs for _, run in pair if run.measurement is not None}
    assert beside, "no two trials ran at once"
    for _, run in leases:
        if run.measurement is not None:
            assert run.measurement.conditions is not None
            assert (run.measurement.conditions.co_tenants > 0) == (run.id in beside)

    below = agent.children(recursive=True)
    agent.kill()
    assert not psutil.wait_procs(below, timeout=30)[1], "workers outlived the process that started them"
