"""Events of one study that many processes and threads write at once, read meanwhile: in order, and never with a gap."""

import threading

import pytest

from shardtune.db.session import Database
from tests.support.service import run_history
from tests.support.service.replica_set import replicas_of
from tests.support.service.scenarios import in_threads
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, quietly

pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("database_url", ["postgres"], indirect=True)]

SETTINGS = {"sweep_s": 0.2, "poll_s": 0.1}


def read_all(client, study_id, over):
    """Numbers as a client that always asks for what comes next is told them; in the end all."""
    numbers, is_last = [], False
    while not is_last:
        ends = over.is_set()
        params = {"after": numbers[-1] if numbers else 0, "limit": 7}
        page = client.get(f"/v1/studies/{study_id}/events", params=params).json()
        numbers += [event["number"] for event in page["events"]]
        is_last = ends and not page["events"]
    return numbers


def test_concurrent_writers_leave_no_gap_that_a_reader_could_see(database_url, tmp_path):
    with replicas_of(2, database_url, tmp_path, **SETTINGS) as replicas:
        workers = [SimulatedWorker(replicas.clients[n % 2], f"w-{n}", quietly).register() for n in range(6)]
        spec = SPEC | {"budget": {"max_trials": 12}}
        study_id = replicas.clients[0].post("/v1/studies", json=spec).json()["study_id"]
        over, reported = threading.Event(), {}

        def watch(client):
            reported[client.base_url] = read_all(client, study_id, over)

        def pause_and_resume(client):
            for action in ("pause", "resume") * 8:
                client.post(f"/v1/studies/{study_id}:{action}").raise_for_status()

        watchers = [threading.Thread(target=watch, args=(client,)) for client in replicas.clients]
        for watcher in watchers:
            watcher.start()
        try:
            in_threads(lambda work: work(), [*(w.work for w in workers), lambda: pause_and_resume(replicas.clients[1])])
            workers[0].work()
        finally:
            over.set()
            for watcher in watchers:
                watcher.join()
        assert replicas.get(f"/v1/studies/{study_id}")["state"] == "complete"
    assert len(reported) == 2 and all(numbers == list(range(1, len(numbers) + 1)) for numbers in reported.values()), (
        reported
    )
    database = Database(database_url)
    assert run_history.faults(database) == []
    database.close()
