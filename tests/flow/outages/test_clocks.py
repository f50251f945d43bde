"""A replica whose clock is an hour off: leases are written and judged by the database's clock."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.requirements import missing
from tests.support.service.replica import Replica
from tests.support.service.simulated_worker import MODEL_SUMMARY, SPEC, SimulatedWorker

pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("database_url", ["postgres"], indirect=True)]

LEASE_S = 6.0
"""Long enough for a heartbeat of a busy machine: the test sends them in turn with three other requests."""
SETTINGS = {"lease_s": LEASE_S, "heartbeat_s": 0.5, "sweep_s": 0.2, "poll_s": 0.1}
LIBRARY = "libfaketime.so.1"


@pytest.fixture
def clients(database_url: str, tmp_path: Path) -> Iterator[list[httpx.Client]]:
    """Contexts of a replica whose clock is right and of one whose clock is an hour ahead."""
    next_run = next(Path("/usr/lib").glob(f"*/faketime/{LIBRARY}"), None)
    if next_run is None:
        missing("libfaketime")
    ahead = {"LD_PRELOAD": str(next_run), "FAKETIME": "+3600", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with (
        Replica(database_url, tmp_path / "right.log", **SETTINGS) as right,
        Replica(database_url, tmp_path / "ahead.log", environment=ahead, **SETTINGS) as off,
    ):
        opened = []
        for replica in (right, off):
            replica.wait_until_ready()
            opened.append(httpx.Client(base_url=replica.url, timeout=30, trust_env=False))
        yield opened
        for client in opened:
            client.close()


def test_a_replica_an_hour_off_changes_nothing_and_says_so(clients: list[httpx.Client]):
    right, off = clients
    assert "clock" not in right.get("/readyz").json()
    assert "3600 s ahead of the database's" in off.get("/readyz").json()["clock"]
    worker = SimulatedWorker(right, name="beats").register()
    other = SimulatedWorker(off, name="falls-silent").register()
    spec = SPEC | {"budget": {"max_trials": 2}}
    study_id = off.post("/v1/studies", json=spec).json()["study_id"]
    worker.report(worker.lease(), MODEL_SUMMARY).raise_for_status()
    kept, lease = worker.lease(), other.lease()
    next_one, taken = SimulatedWorker(right, name="takes-over").register(), None
    # The replica ahead sweeps every 0.2 s: by its own clock every lease would have ended an hour ago.
    end_s = time.monotonic() + 10 * LEASE_S
    while taken is None:
        assert time.monotonic() < end_s, "a lease that the replica ahead wrote does not end"
        assert worker.heartbeat(kept)["action"] == "continue"
        taken = next_one.lease()
        time.sleep(0.2)
    assert (taken.run_id, taken.attempt) == (lease.run_id, 2)
    events = right.get(f"/v1/studies/{study_id}/events", params={"limit": 1000}).json()["events"]
    moments = [event["created_at"] for event in events]
    assert moments == sorted(moments)
