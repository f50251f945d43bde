"""Workers and services of neighbouring releases: what the reader does not know, and what the writer must not say."""

import pytest

from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.service.leasing import unread_leases
from tests.support.service.simulated_worker import MODEL_SUMMARY, SPEC, SimulatedWorker, failure, measurement

NEWER = {"of_a_later_release": {"any": ["thing"]}}


@pytest.fixture
def worker(client):
    return SimulatedWorker(client, name="old").register()


def unreadable(worker, lease, **changes):
    body = {"attempt": lease.attempt, "message": "task.config: a knob of another release"} | changes
    return worker.post(f"/v1/runs/{lease.run_id}/unreadable", body)


def attempts(client, study_id, number=0):
    return client.get(f"/v1/studies/{study_id}/trials").json()["trials"][number]["runs"][0]["attempts"]


def worker_view(client, name="old"):
    return next(shown for shown in client.get("/v1/workers").json()["workers"] if shown["name"] == name)


@pytest.mark.wide_on_postgres
def test_fields_of_a_newer_worker_are_ignored_in_every_message_and_within_its_values(client):
    worker = SimulatedWorker(client, name="new")
    inventory = worker.inventory.model_dump(mode="json")
    inventory["fingerprint"] |= NEWER
    inventory["cluster"] |= NEWER
    worker.register(inventory=inventory | NEWER, **NEWER)
    client.post("/v1/studies", json=SPEC).raise_for_status()
    answer = worker.post("/v1/leases", {"wait_s": 0} | NEWER)
    assert answer.status_code == 200
    summary = MODEL_SUMMARY.model_dump(mode="json")
    path = f"/v1/runs/{answer.json()['run_id']}"
    assert (
        worker.post(f"{path}/heartbeat", {"attempt": 1, "progress": {"phase": "building"} | NEWER}).status_code == 200
    )
    report = {"attempt": 1, "gpu_seconds": 1.0, "model_summary": summary | NEWER} | NEWER
    assert worker.post(f"{path}/report", report).json() == {"applied": True}


@pytest.mark.wide_on_postgres
def test_a_wrong_value_of_a_known_field_is_still_named(client):
    worker = SimulatedWorker(client).register()
    answer = worker.post("/v1/leases", {"wait_s": 99} | NEWER)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == ["wait_s"]


@pytest.mark.wide_on_postgres
def test_unknown_fields_of_a_persons_request_are_rejected(client, worker):
    """A misspelt field of a study would silently change what is searched."""
    for body, field in (
        (SPEC | {"sampller": "tpe"}, "sampller"),
        (SPEC | {"budget": {"max_trails": 8}}, "budget.max_trails"),
    ):
        answer = client.post("/v1/studies", json=body)
        assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (422, [field])


@pytest.mark.wide_on_postgres
def test_the_newest_common_version_is_agreed_on(client):
    worker = SimulatedWorker(client)
    answer = worker.introduce(protocol_version=PROTOCOL_VERSION + 1, oldest_protocol_version=PROTOCOL_VERSION)
    assert (answer.status_code, answer.json()["protocol_version"]) == (200, PROTOCOL_VERSION)


@pytest.mark.parametrize(
    ("versions", "remedy"),
    [
        ({"protocol_version": 0}, "install shardtune"),
        ({"protocol_version": 9, "oldest_protocol_version": 8, "release": "7.1.0"}, "upgrade the service"),
    ],
)
@pytest.mark.wide_on_postgres
def test_a_worker_outside_of_the_range_is_told_both_versions_and_the_remedy(client, versions, remedy):
    answer = SimulatedWorker(client, name="box").introduce(**versions)
    assert (answer.status_code, answer.json()["code"]) == (400, "protocol_version")
    detail = answer.json()["detail"]
    assert "worker box" in detail and f"{PROTOCOL_VERSION} of the service" in detail and remedy in detail
    assert versions.get("release", "unknown release") in detail
    assert client.get("/v1/workers").json()["workers"] == []


@pytest.mark.wide_on_postgres
def test_a_service_that_went_back_a_release_keeps_the_runs_of_newer_workers(worker, lease):
    newer = {"protocol_version": PROTOCOL_VERSION + 1}
    assert worker.heartbeat(lease, **newer)["action"] == "continue"
    assert worker.report(lease, measurement(1000), **newer).json() == {"applied": True}


def test_a_lease_that_its_worker_cannot_read_goes_to_another_at_once(client, worker, lease, study_id):
    assert unreadable(worker, lease).json() == {"applied": True}
    assert worker.lease() is None
    (ended,) = attempts(client, study_id)
    assert ended["end"] == "released" and "could not read the lease: task.config" in ended["failure_message"]
    other = SimulatedWorker(client, name="new").register()
    taken = other.lease()
    assert (taken.run_id, taken.attempt) == (lease.run_id, 2)
    assert client.get(f"/v1/studies/{study_id}").json()["reason"] is None


@pytest.mark.wide_on_postgres
def test_an_unreadable_lease_is_reported_once(worker, lease, client, study_id):
    assert unreadable(worker, lease).json() == {"applied": True}
    assert unreadable(worker, lease).json() == {"applied": False}
    assert worker.report(lease, measurement(1000)).json()["code"] == "lease_lost"
    assert len(attempts(client, study_id)) == 1


@pytest.mark.parametrize("change", [{"attempt": 2}, {"session": "session-of-another"}])
@pytest.mark.wide_on_postgres
def test_only_the_holder_says_that_a_lease_is_unreadable(worker, lease, change, client, study_id):
    answer = unreadable(worker, lease, **change)
    assert (answer.status_code, answer.json()["code"]) == (409, "lease_lost")
    assert attempts(client, study_id)[0]["end"] is None and worker_view(client)["set_aside"] is None


@pytest.mark.wide_on_postgres
def test_a_worker_set_aside_and_the_study_that_waits_say_why(client, worker, lease, study_id):
    unreadable(worker, lease)
    shown = worker_view(client)
    assert shown["is_draining"] and "could not read the lease" in shown["set_aside"]
    assert "install the service's release" in shown["set_aside"]
    reason = client.get(f"/v1/studies/{study_id}").json()["reason"]
    assert reason.startswith("waiting for a worker: old gets no runs") and "could not read the lease" in reason


@pytest.mark.wide_on_postgres
def test_a_worker_set_aside_works_again_when_it_restarts_or_is_resumed(client, worker, lease):
    unreadable(worker, lease)
    reborn = SimulatedWorker(client, name="old").register()
    again = reborn.lease()
    assert again.run_id == lease.run_id and worker_view(client)["set_aside"] is None
    unreadable(reborn, again)
    client.post(f"/v1/workers/{worker_view(client)['worker_id']}:resume").raise_for_status()
    assert reborn.lease().run_id == lease.run_id


@pytest.mark.wide_on_postgres
def test_a_worker_that_a_person_drained_stays_drained_when_it_restarts(client, worker, lease):
    client.post(f"/v1/workers/{worker_view(client)['worker_id']}:drain").raise_for_status()
    unreadable(worker, lease)
    assert SimulatedWorker(client, name="old").register().lease() is None


def test_a_holder_that_only_asks_for_work_loses_its_run(client, worker, lease, study_id, clock):
    """It neither reads its lease nor says so, as a worker of an older release would do."""
    for _ in range(unread_leases.MOST_LEASE_REPEATS):
        clock.turn(5)
        again = worker.lease()
        assert (again.run_id, again.attempt) == (lease.run_id, lease.attempt)
    assert worker.lease() is None and worker.lease() is None
    (ended,) = attempts(client, study_id)
    assert ended["end"] == "worker_lost" and "asked for work 6 times while it had the lease" in ended["failure_message"]
    assert "asked for work" in worker_view(client)["set_aside"]
    assert "asked for work" in client.get(f"/v1/studies/{study_id}").json()["reason"]
    assert worker.report(lease, failure(FailureKind.CRASH)).json()["code"] == "lease_lost"
    assert SimulatedWorker(client, name="new").register().lease().run_id == lease.run_id


@pytest.mark.wide_on_postgres
def test_repeats_are_counted_for_each_attempt(worker, lease):
    for _ in range(2):
        for _ in range(unread_leases.MOST_LEASE_REPEATS):
            worker.lease()
        worker.report(lease, failure(FailureKind.WORKER_LOST)).raise_for_status()
        lease = worker.lease()
    assert worker.report(lease, measurement(1000)).json() == {"applied": True}


@pytest.mark.parametrize(
    "workload",
    [
        {"optimizer": "adamw-8bit"},
        {"precision": "bf16-true"},
        {"precision": "bf16-true", "optimizer": "adamw-bf16"},
        {"float8": "rowwise"},
        {"adapter": "qlora"},
    ],
    ids=str,
)
@pytest.mark.wide_on_postgres
def test_a_worker_of_version_1_gets_no_run_that_it_would_train_otherwise(client, workload):
    able = {"optimizers": ("adamw-8bit",), "float8": ("tensorwise", "rowwise")}
    able |= {"adapters": ("lora", "qlora")}
    worker = SimulatedWorker(client, name="old", **able).register()
    spec = SPEC | {"workload": SPEC["workload"] | workload}
    study = client.post("/v1/studies", json=spec).raise_for_status().json()["study_id"]
    asked = worker.post("/v1/leases", {"wait_s": 0, "protocol_version": 1})
    assert asked.status_code == 204
    reason = client.get(f"/v1/studies/{study}").json()["reason"]
    assert "came with version 2 of the protocol; upgrade the worker" in reason
    assert SimulatedWorker(client, name="new", **able).register().lease() is not None
