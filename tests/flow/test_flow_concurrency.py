"""Many workers asking at once, from threads, on both databases."""

import threading

from simulated_worker import CLUSTER, PROFILE, SPEC, SimulatedWorker, measurement

from api_schemas.leases import LeaseRequest
from db.session import Database
from service import leases
from service.context import Context
from service.settings import Settings

SPEC_24 = SPEC | {"budget": {"max_trials": 24}, "cluster": CLUSTER.model_dump()}


def in_threads(work, arguments):
    errors = []

    def guarded(argument):
        try:
            work(argument)
        except Exception as error:  # noqa: BLE001 (a thread's error is the test's)
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def open_study(client, count):
    """A profiled study and its workers."""
    workers = [SimulatedWorker(client, name=f"sim-{i}").register() for i in range(count)]
    study_id = client.post("/v1/studies", json=SPEC_24).json()["study_id"]
    workers[0].report(workers[0].lease(), PROFILE).raise_for_status()
    return study_id, workers


def test_concurrent_leases_are_distinct_trials(client):
    study_id, workers = open_study(client, 6)
    got = []
    in_threads(lambda worker: got.append(worker.lease()), workers)
    assert sorted(lease.trial_number for lease in got) == list(range(6))
    assert len({lease.task.config.content_key() for lease in got}) == 6
    assert client.get(f"/v1/studies/{study_id}").json()["trials"] == {"running": 6}


def test_concurrent_requests_of_one_session_get_one_lease(client):
    _, workers = open_study(client, 1)
    got = []
    in_threads(lambda worker: got.append(worker.lease()), workers * 5)
    assert {(lease.run_id, lease.attempt) for lease in got} == {(got[0].run_id, 1)}


def test_two_service_processes_never_give_out_the_same(client, database_url, clock):
    """Each has an asker lock of its own: only the study's version stands between them."""
    _, workers = open_study(client, 4)
    contexts = [Context(Database(database_url), Settings(database_url=database_url), clock) for _ in range(2)]
    got = []

    def ask(index):
        request = LeaseRequest(protocol_version=1, session=workers[index].session)
        got.append(leases.grant(contexts[index % 2], request))

    in_threads(ask, range(4))
    assert len({lease.task.config.content_key() for lease in got}) == 4
    for context in contexts:
        context.db.close()


def test_concurrent_reports_all_count(client):
    study_id, workers = open_study(client, 4)
    held = [(worker, worker.lease()) for worker in workers]
    in_threads(lambda pair: pair[0].report(pair[1], measurement(1000)).raise_for_status(), held)
    study = client.get(f"/v1/studies/{study_id}").json()
    assert study["trials"] == {"complete": 4} and study["gpu_seconds"] == 30.0
